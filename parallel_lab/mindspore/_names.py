"""What MindSpore's modules have and this package lacks, by its API documentation of 1.0 to 2.6: words, nothing more.

A name that is here is still importable, as an object that says what is missing when it is used. A name that is neither
here nor in the package never was MindSpore's, and its import fails.
"""

from __future__ import annotations

# {documented module: its names that this package lacks, and those of modules}
NAMES: dict[str, str] = {
    **dict.fromkeys(("amp", "common.initializer"), ""),
    "": """
        async_ckpt_thread_status byte check_checkpoint ckpt_to_safetensors complex128 complex64 constexpr
        convert_model ConvertModelUtils ConvertNetUtils COOTensor CSRTensor enable_dynamic_memory export
        from_numpy function DeviceCtx Generator get_ckpt_path_with_strategy get_current_device get_level
        get_log_config get_ps_context get_py_obj_dtype get_rng_state initial_seed int4 intc intp is_tensor
        issubclass_ list_ load load_checkpoint_async load_mindir load_segmented_checkpoints manual_seed
        ms_memory_recycle number obfuscate_model parameter_broadcast parse_print Profiler QuantDtype
        reset_ps_context RowTensor RowTensorInner runtime safetensors_to_ckpt save_mindir seed set_cpu_affinity
        set_dump set_ps_context set_rng_state SparseTensor string SummaryLandscape SummaryRecord tuple_
        type_none ubyte uintc uintp unified_safetensors ushort
        """,
    "nn": """
        AdaptiveAvgPool3d AdaptiveMaxPool3d auc BiDense Bleu
        BleuScore CentralCrop CombinedLoss ConfusionMatrix ConfusionMatrixMetric Conv2dBnAct Conv2dThor
        Conv3dTranspose CTCLoss DenseBnAct DenseThor DGCMomentum Dice EmbeddingLookupThor EmbeddingTable
        EmbeddingThor FakeQuantWithMinMaxObserver FlattenWeights FractionalMaxPool2d FractionalMaxPool3d
        GetNextSingleOp GraphCell HausdorffDistance ImageGradients Jvp L1Regularizer LPPool1d LPPool2d LRN
        MatMul MatrixDiag MatrixDiagPart MatrixSetDiag MaxUnpool1d MaxUnpool2d MaxUnpool3d MeanSurfaceDistance
        Moments MSSSIM MultiClassDiceLoss MultilabelMarginLoss MultiMarginLoss OcclusionSensitivity OneHot
        Perplexity PSNR Range ReduceLogSumExp ROC Roll RootMeanSquareDistance SampledSoftmaxLoss
        SparseTensorDenseMatmul SparseToDense SSIM thor TimeDistributed Tril Triu Vjp
        """,
    "ops": """
        Arange Chunk DropoutExt FusedAddTopKDiv MoeDistributeCombine MoeDistributeDispatch Scatter SwigluGrad
        accumulate_n adaptive_max_pool3d AdaptiveAvgPool3D AdaptiveMaxPool3D adjoint AdjustHue AdjustSaturation
        affine_grid AffineGrid AiCPURegOp AllSwap alltoall_single AlltoAllVC angle Assert
        associative_scan atleast_1d atleast_2d atleast_3d avg_pool1d bartlett_window BasicLSTMCell batch_dot
        batch_to_space_nd BatchToSpace BatchToSpaceND BatchToSpaceNDV2 bessel_j0 bessel_j1 bessel_k0 bessel_k0e
        bessel_k1 bessel_k1e bessel_y0 bessel_y1 BesselJ0 BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e
        BesselY0 BesselY1 Betainc bidense Bincount bincount BNTrainingReduce Bucketize BufferAppend
        BufferGetItem BufferSample BufferSampleV2 Cauchy CheckBprop CheckNumerics Cholesky cholesky
        cholesky_inverse cholesky_solve CholeskyInverse CholeskySolve Coalesce coalesce col2im combinations
        CombinedNonMaxSuppression CompareAndBitpack Complex complex ComplexAbs ComputeAccidentalHits
        ConfusionMatrix Conj conj ConjugateTranspose conv1d conv1d_transpose conv2d_transpose conv3d_transpose
        Conv3DTranspose coo_to_dense cov csr_add csr_mm csr_mv csr_softmax csr_to_coo csr_to_dense
        ctc_greedy_decoder ctc_loss CTCGreedyDecoder CTCLossV2 cumulative_trapezoid custom_info_register
        CustomOpBuilder CustomRegOp DataFormatDimMap DataFormatVecPermute DataType dct deformable_conv2d
        dense_to_sparse_coo dense_to_sparse_csr DepthwiseConv2dNative derivative Diag diag_embed diagflat
        diagonal_scatter DiagPart Dilation2D dsplit dyn_shape DynamicGRUV2 DynamicRNN DynamicShape EditDistance
        Eig eig Einsum Eps eps equal_ EqualCount expand ExtractGlimpse ExtractVolumePatches fft fft2 fftfreq
        fftn fftshift FFTWithSize fill_diagonal FillDiagonal floormod fmax fmin fori_loop ForiLoop
        fractional_max_pool2d fractional_max_pool3d FractionalAvgPool FractionalMaxPool
        FractionalMaxPool3DWithFixedKsize FractionalMaxPoolWithFixedKsize fused_infer_attention_score
        FusedAdaFactor Geqrf geqrf get_vm_impl_fn GLU GridSampler3D GroupTopk gru_cell gumbel_softmax
        hamming_window HammingWindow hfft hfft2 hfftn histc Histogram HistogramFixedWidth
        hsplit HSVToRGB idct IdentityN idft ifft ifft2 ifftn ifftshift ihfft ihfft2 ihfftn im2col Imag imag
        incre_flash_attention IndexAdd IndexFill IndexPut inplace_index_add InplaceIndexAdd
        InplaceUpdateV2 InTopK intopk irfft irfft2 irfftn is_complex is_floating_point is_nonzero is_tensor
        IsInstance isreal IsSubClass jet kaiser_window kernel ldexp linearize LinearSpace ListDiff Load
        LogNormalReverse LogSpace logspace LowerBound lp_pool1d lp_pool2d lrn LSTM lstm_cell Lstsq lstsq
        lu_solve lu_unpack LuSolve LuUnpack make_coo_tensor make_csr_tensor make_row_tensor make_sparse_tensor
        MapTensorErase MapTensorGet MaskedScatter MaskedSelect matrix_band_part matrix_diag matrix_diag_part
        matrix_exp matrix_set_diag matrix_solve MatrixBandPart MatrixDiagPartV3 MatrixDiagV3 MatrixExp
        MatrixLogarithm MatrixPower MatrixSetDiagV3 MatrixSolve MatrixTriangularSolve max_unpool1d max_unpool2d
        max_unpool3d MaxPool3DWithArgmax MaxPoolWithArgmax MaxPoolWithArgmaxV2 MaxUnpool2D MaxUnpool3D median
        Meshgrid mirror_pad move_to MoveTo ms_kernel multi_label_margin_loss multi_margin_loss
        multilabel_margin_loss MultilabelMarginLoss MultiMarginLoss multinomial_with_replacement
        MultinomialWithReplacement MultiplyAdd
        Mvlgamma mvlgamma nanmean nanmedian NonDeterministicInts NonMaxSuppressionV3
        NonMaxSuppressionWithOverlaps NonZero NoRepeatNGram NPUClearFloatStatusV2 NPUGetFloatStatusV2 NthElement
        NuclearNorm op_info_register Orgqr orgqr ormqr pack Padding padding parallel_concat ParallelConcat
        ParameterizedTruncatedNormal Pdist pdist Polar polar Polygamma polygamma positive prompt_flash_attention
        PsROIPooling Pull Push PyExecute Qr Quantile quantile RaggedRange random_categorical RandomCategorical
        RandomGamma RandomPoisson RandomShuffle RandpermV2 Real real rearrange ReduceStd ReLUV3
        RemoteEmbeddingTable Renorm renorm resize_bicubic resize_linear_1d ResizeArea ResizeBicubic
        ResizeLinear1D ResizeNearestNeighborV2 reverse reverse_sequence ReverseSequence rfft rfft2 rfftfreq
        rfftn RGBToHSV RNNTLoss row_tensor_add row_tensor_get_dense_shape rrelu SameTypeShape
        sample_distorted_bounding_box_v2 SampleDistortedBoundingBoxV2 scalar_cast ScalarAdd ScalarCast ScalarDiv
        ScalarMul ScalarSub ScaleAndTranslate Scan scan ScatterAddWithAxis ScatterNonAliasingAdd
        search_sorted SearchSorted SegmentMax SegmentMean SegmentMin SegmentProd SegmentSum select_scatter
        sequence_mask shape_ silent_check slice slice_scatter SlogDet SoftMarginLoss solve_triangular
        space_to_batch_nd SpaceToBatch SpaceToBatchND sparse_add sparse_concat SparseApplyAdadelta
        SparseApplyFtrlV2 SparseApplyRMSProp SparseSlice SparseTensorDenseAdd SparseTensorDenseMatmul
        SparseToDense STFT stft Svd svd SyncBatchNorm tail TBERegOp tensor_dump tensor_slice         TensorShape
        TensorSlice Trace trans TridiagonalMatMul TridiagonalSolve tril_indices
        TrilIndices TripletMarginLoss triu_indices TriuIndices unique_consecutive UniqueConsecutive UnravelIndex
        UpdateState UpperBound upsample UpsampleNearest3D UpsampleTrilinear3D vander view_as_real vsplit
        while_loop WhileLoop WholeToSparse Zipf DCT DCTN FFT FFT2 FFTN FFTShift HFFT HFFT2 HFFTN IDCT
        IDCTN IFFT IFFT2 IFFTN IFFTShift IHFFT IHFFT2 IHFFTN IRFFT IRFFT2 IRFFTN RFFT RFFT2 RFFTN
        """,
    "mint": """
        complex conv dequantize histc imag masked_fill_ masked_scatter polar quantize real seed triangular_solve
        unique_consecutive
        """,
    "mint.linalg": "qr",
    "mint.nn": """
        MaxUnpool2d
        """,
    "mint.nn.functional": """
        conv_transpose2d elu_ max_unpool2d relu_
        """,
    "train": """
        amp auc BackupAndRestore BleuScore callback ConfusionMatrix ConfusionMatrixMetric
        ConvertModelUtils ConvertNetUtils CosineSimilarity
        Dice HausdorffDistance MeanSurfaceDistance mind_ir_pb2 OcclusionSensitivity
        Perplexity print_pb2 ROC RootMeanSquareDistance summary_pb2 SummaryLandscape SummaryRecord TFTRegister
        TrainFaultTolerance
        """,
    "parallel": """
        DistributedModule function load_segmented_checkpoints parameter_broadcast strategy
        sync_pipeline_shared_parameters
        """,
    "parallel.nn": "",
    "communication": "BACKEND_HCCL BACKEND_NCCL comm_func DEFAULT_WORLD_COMM_GROUP get_comm_name",
    "dataset": """
        AGNewsDataset AmazonReviewDataset ArgoverseDataset audio BatchDataset BatchInfo Caltech101Dataset
        Caltech256Dataset CelebADataset Cifar100Dataset CityscapesDataset CLUEDataset CMUArcticDataset
        CocoDataset compare config CoNLL2000Dataset CSVDataset DatasetCache DBpediaDataset deserialize
        DIV2KDataset DSCallback EMnistDataset engine EnWik9Dataset FakeImageDataset FashionMnistDataset
        FlickrDataset Flowers102Dataset Food101Dataset Graph GraphData GTZANDataset imagefolder
        ImageFolderDataset IMDBDataset InMemoryGraphDataset IWSLT2016Dataset IWSLT2017Dataset KITTIDataset
        KMnistDataset LFWDataset LibriTTSDataset LJSpeechDataset LSUNDataset ManifestDataset MappableDataset
        MindDataset Multi30kDataset MultiArrayDataset NeighborSampling OBSMindDataset OmniglotDataset
        OutputFormat PaddedDataset PennTreebankDataset PhotoTourDataset Places365Dataset QMnistDataset
        RandomDataset RenderedSST2Dataset RepeatDataset SamplingStrategy SBDataset SBUDataset Schema
        SemeionDataset serialize show Shuffle SogouNewsDataset SourceDataset SpeechCommandsDataset SQuADDataset
        SST2Dataset STL10Dataset SUN397Dataset SVHNDataset sync_wait_for_dataset TedliumDataset text
        TextFileDataset TFRecordDataset transforms UDPOSDataset USPSDataset vision VisionBaseDataset VOCDataset
        WaitedDSCallback WIDERFaceDataset WikiTextDataset YahooAnswersDataset YelpReviewDataset YesNoDataset
        """,
    "dataset.vision": """
        AdjustBrightness AdjustContrast AdjustGamma AdjustHue AdjustSaturation AdjustSharpness Affine
        ApplyPolicy AutoAugment AutoAugmentPolicy AutoContrast BoundingBoxAugment c_transforms CenterCrop
        ConvertColor ConvertMode Crop CutMixBatch CutOut Decode DecodeVideo DeviceTarget encode_jpeg encode_png
        Equalize Erase FiveCrop GaussianBlur get_image_num_channels get_image_size Grayscale HorizontalFlip
        HsvToRgb ImageBatchFormat ImageReadMode Invert LinearTransformation MixUp MixUpBatch NormalizePad
        not_random Pad PadToSize Perspective Posterize py_transforms RandAugment RandomAdjustSharpness
        RandomAffine RandomAutoContrast RandomColor RandomColorAdjust RandomCropDecodeResize RandomCropWithBBox
        RandomEqualize RandomErasing RandomGrayscale RandomHorizontalFlipWithBBox RandomInvert RandomLighting
        RandomOrder RandomPerspective RandomPosterize RandomResize RandomResizedCrop RandomResizedCropWithBBox
        RandomResizeWithBBox RandomRotation RandomSelectSubpolicy RandomSharpness RandomSolarize
        RandomVerticalFlip RandomVerticalFlipWithBBox read_file read_image read_video read_video_timestamps
        ReadVideo ResizedCrop ResizeWithBBox RgbToHsv Rotate Solarize TenCrop ToNumpy ToPIL ToTensor ToType
        TrivialAugmentWide UniformAugment VerticalFlip VideoDecoder write_file write_jpeg write_png
        """,
    "dataset.transforms": """
        c_transforms Concatenate Duplicate Fill Mask not_random OneHot PadEnd Plugin py_transforms
        PyTensorOperation RandomApply RandomChoice RandomOrder Relational Slice Unique
        """,
    "runtime": """
        DeviceCtx max_memory_allocated max_memory_reserved memory_allocated memory_replay memory_reserved
        memory_stats memory_summary MemPool PluggableAllocator reset_max_memory_allocated
        reset_max_memory_reserved reset_peak_memory_stats set_cpu_affinity set_kernel_launch_capture
        """,
    "context": "get_ps_context K_CONTEXT reset_ps_context set_ps_context",
    "log": "exception get_level get_log_config set_level vlog",
}

# module paths that this package has no page for: importable, and so is any name from them
MODULES = """
    boost boost.base boost.dim_reduce boost.grad_accumulation common.file_system common.generator common.hook_handle
    common.jit_context common.lazy_inline common.mutable common.no_inline common.np_dtype common.recompute
    common.sparse_tensor dataset.audio dataset.callback dataset.debug dataset.engine.cache_client
    dataset.engine.serializer_deserializer dataset.text dataset.text.transforms dataset.text.utils
    dataset.transforms.py_transforms dataset.utils dataset.vision.py_transforms device_context device_context.ascend
    device_context.ascend.op_debug device_context.ascend.op_precision device_context.ascend.op_tuning
    device_context.cpu device_context.cpu.op_tuning device_context.gpu device_context.gpu.op_precision
    device_context.gpu.op_tuning experimental experimental.es experimental.llm_boost experimental.map_parameter
    experimental.optim experimental.optim.adam experimental.optim.adamw experimental.optim.lr_scheduler
    experimental.optim.optimizer
    experimental.optim.sgd graph hal include lite mindrecord mindspore_version
    multiprocessing nn.distribution nn.grad nn.grad.cell_grad nn.layer.channel_shuffle nn.layer.combined
    nn.layer.flash_attention nn.layer.image nn.layer.math nn.layer.padding nn.layer.quant
    nn.layer.rnns nn.layer.thor_layer nn.layer.timedistributed nn.optim.tft_wrapper nn.optim.thor
    nn.probability nn.probability.bijector nn.probability.distribution nn.reinforcement nn.sparse nn.utils.init
    offline_debug ops.auto_generate.gen_ops_def ops.bprop_mindir
    ops.composite.env_ops ops.composite.math_ops ops.composite.multitype_ops ops.composite.vmap_ops ops.custom_ops
    ops.deprecated ops.extend ops.function.array_func ops.function.clip_func ops.function.debug_func
    ops.function.fft_func ops.function.grad ops.function.grad.grad_func ops.function.image_func
    ops.function.linalg_func ops.function.math_func ops.function.nn_func ops.function.other_func
    ops.function.parameter_func ops.function.random_func ops.function.sparse_func ops.function.spectral_func
    ops.function.vmap_func ops.op_info_register ops.op_selector ops.operations.custom_ops ops.operations.debug_ops
    ops.operations.image_ops ops.operations.linalg_ops ops.operations.random_ops ops.operations.rl_ops
    ops.operations.sparse_ops ops.operations.spectral_ops ops.operator ops.signature ops.silent_check
    ops.tensor_method parallel.cluster parallel.distributed parallel.mpi parallel.nn.parallel_cell_wrapper
    parallel.nn.parallel_grad_reducer parallel.parameter_broadcast parallel.strategy profiler profiler.common
    profiler.envprofiler profiler.mstx profiler.schedule rewrite rewrite.api run_check safeguard scipy scipy.linalg
    scipy.optimize scipy.sparse train.anf_ir_pb2 train.bert_score train.callback.callback train.data_sink
    train.dataset_helper train.metrics.metric train.mind_ir_pb2 train.node_strategy_pb2 train.summary
    train.summary.summary_record train.summary.writer train.train_thor utils utils.dryrun
    utils.runtime_execution_order_check utils.sdc_detect utils.stress_detect utils.utils
    """
