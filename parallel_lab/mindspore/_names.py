"""The public names of MindSpore's modules, as its API documentation of 1.0 to 2.6 lists them: words, nothing more.

What is here and not in this package is still importable, as an object that says what is missing when it is used. A name
that is neither here nor in the package never was MindSpore's, and its import fails.
"""

from __future__ import annotations

# {module path: its documented names, whether this package has them or not}
NAMES: dict[str, str] = {
    "": """
        async_ckpt_thread_status bfloat16 byte check_checkpoint ckpt_to_safetensors complex128 complex64
        connect_network_with_dataset constexpr convert_model ConvertModelUtils ConvertNetUtils COOTensor CSRTensor
        data_sink DatasetHelper enable_dynamic_memory export flops_collection from_numpy function Generator
        get_algo_parameters get_current_device get_grad get_level get_log_config get_offload_context get_ps_context
        get_py_obj_dtype get_rng_state initial_seed int4 intc intp is_tensor issubclass_ jacfwd jacrev jit_class
        JitConfig jvp Layout lazy_inline list_ load load_checkpoint_async load_mindir load_segmented_checkpoints
        manual_seed merge_pipeline_strategys ms_class ms_function ms_memory_recycle mutable no_inline number
        obfuscate_model parameter_broadcast parse_print Profiler QuantDtype reset_ps_context reshard
        restore_group_info_list RowTensor RowTensorInner runtime safetensors_to_ckpt save_mindir seed set_cpu_affinity
        set_dump set_offload_context set_ps_context set_rng_state SparseTensor string SummaryLandscape SummaryRecord
        Symbol sync_pipeline_shared_parameters transform_checkpoints tuple_ type_none ubyte uintc uintp
        unified_safetensors ushort vjp vmap
        """,
    "nn": """
        Accuracy Adadelta AdaFactor AdaMax AdamOffload AdaptiveAvgPool1d AdaptiveAvgPool3d AdaptiveMaxPool1d
        AdaptiveMaxPool3d AdaSumByDeltaWeightWrapCell AdaSumByGradWrapCell ASGD auc AvgPool1d AvgPool3d BatchNorm1d
        BatchNorm2d BatchNorm3d BiDense Bleu BleuScore CellDict CELU CentralCrop ChannelShuffle ClipByNorm
        CombinedLoss ConfusionMatrix ConfusionMatrixMetric ConstantPad1d ConstantPad2d ConstantPad3d Conv1d
        Conv1dTranspose Conv2dBnAct Conv2dThor Conv2dTranspose Conv3d Conv3dTranspose CosineEmbeddingLoss
        CosineSimilarity CTCLoss DenseBnAct DenseThor DGCMomentum Dice DiceLoss DistributedGradReducer
        DynamicLossScaleUpdateCell EmbeddingLookupThor EmbeddingTable EmbeddingThor F1 FakeQuantWithMinMaxObserver
        FastGelu Fbeta FlattenWeights FocalLoss FractionalMaxPool2d FractionalMaxPool3d FTRL GaussianNLLLoss
        get_metric_fn GetNextSingleOp GLU GraphCell GRU GRUCell Hardtanh HausdorffDistance HingeEmbeddingLoss HShrink
        HSigmoid HuberLoss ImageGradients InstanceNorm1d InstanceNorm2d InstanceNorm3d Jvp KLDivLoss L1Regularizer
        LazyAdam LeakyReLU Loss LPPool1d LPPool2d LRN LSTM LSTMCell MAE MarginRankingLoss MatMul MatrixDiag
        MatrixDiagPart MatrixSetDiag MaxPool1d MaxPool3d MaxUnpool1d MaxUnpool2d MaxUnpool3d MeanSurfaceDistance Mish
        Moments MSE MSSSIM MultiClassDiceLoss MultiFieldEmbeddingLookup MultilabelMarginLoss MultiLabelSoftMarginLoss
        MultiMarginLoss names Norm OcclusionSensitivity OneHot Pad Perplexity PixelShuffle PixelUnshuffle
        PoissonNLLLoss Precision PReLU ProximalAdagrad PSNR Range rearrange_inputs Recall ReduceLogSumExp
        ReflectionPad1d ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d ReplicationPad3d
        ResizeBilinear RMSELoss RNN RNNCell ROC Roll RootMeanSquareDistance Rprop RReLU SampledSoftmaxLoss SeLU
        SequentialCell SmoothL1Loss SoftMarginLoss Softmax2d Softmin SoftShrink Softsign SparseTensorDenseMatmul
        SparseToDense SSIM SyncBatchNorm Tanhshrink thor Threshold TimeDistributed Top1CategoricalAccuracy
        Top5CategoricalAccuracy TopKCategoricalAccuracy Transformer TransformerDecoder TransformerDecoderLayer Tril
        TripletMarginLoss Triu Unflatten Unfold Upsample Vjp ZeroPad2d
        """,
    "ops": """
        Abs abs absolute accumulate_n AccumulateNV2 ACos acos Acosh acosh Adam AdamNoUpdateParam AdamWeightDecay
        adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
        adaptive_max_pool3d AdaptiveAvgPool2D AdaptiveAvgPool3D AdaptiveMaxPool2D AdaptiveMaxPool3D Add add addbmm
        Addcdiv addcdiv Addcmul addcmul addmm addmv AddN addn addr adjoint AdjustHue AdjustSaturation affine_grid
        AffineGrid AiCPURegOp all AllSwap alltoall_single AlltoAllV AlltoAllVC amax amin angle any ApplyAdadelta
        ApplyAdagrad ApplyAdagradDA ApplyAdagradV2 ApplyAdaMax ApplyAddSign ApplyCenteredRMSProp ApplyFtrl
        ApplyGradientDescent ApplyKerasMomentum ApplyMomentum ApplyPowerSign ApplyProximalAdagrad
        ApplyProximalGradientDescent ApplyRMSProp ApplyRotaryPosEmb approximate_equal ApproximateEqual arange arccos
        arccosh arcsin arcsinh arctan arctan2 arctanh Argmax argmax ArgMaxWithValue Argmin argmin ArgMinWithValue
        argsort argwhere Asin asin Asinh asinh Assert assign assign_add assign_sub associative_scan Atan atan Atan2
        atan2 Atanh atanh atleast_1d atleast_2d atleast_3d avg_pool1d avg_pool2d avg_pool3d AvgPool AvgPool3D baddbmm
        bartlett_window BasicLSTMCell batch_dot batch_norm batch_to_space_nd BatchISendIRecv BatchMatMul BatchNorm
        BatchToSpace BatchToSpaceND BatchToSpaceNDV2 BCEWithLogitsLoss bernoulli bessel_i0 bessel_i0e bessel_i1
        bessel_i1e bessel_j0 bessel_j1 bessel_k0 bessel_k0e bessel_k1 bessel_k1e bessel_y0 bessel_y1 BesselI0
        BesselI0e BesselI1 BesselI1e BesselJ0 BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1 Betainc
        bias_add BiasAdd bidense binary_cross_entropy binary_cross_entropy_with_logits BinaryCrossEntropy Bincount
        bincount bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor BitwiseAnd BitwiseOr
        BitwiseXor blackman_window block_diag bmm BNTrainingReduce bounding_box_decode bounding_box_encode
        BoundingBoxDecode BoundingBoxEncode broadcast_to BroadcastTo Bucketize bucketize BufferAppend BufferGetItem
        BufferSample BufferSampleV2 Cast cast cat Cauchy Cdist cdist Ceil ceil CeLU celu channel_shuffle check_valid
        CheckBprop CheckNumerics CheckValid choice_with_mask Cholesky cholesky cholesky_inverse cholesky_solve
        CholeskyInverse CholeskySolve chunk clamp clip clip_by_global_norm clip_by_norm clip_by_value Coalesce
        coalesce Col2Im col2im CollectiveGather CollectiveScatter column_stack combinations CombinedNonMaxSuppression
        CompareAndBitpack Complex complex ComplexAbs ComputeAccidentalHits Concat concat ConfusionMatrix Conj conj
        ConjugateTranspose constexpr conv1d conv1d_transpose Conv2D conv2d conv2d_transpose Conv2DBackpropInput
        Conv2DTranspose Conv3D conv3d conv3d_transpose Conv3DTranspose coo_to_dense copysign Cos cos Cosh cosh
        cosine_embedding_loss cosine_similarity count_nonzero cov crop_and_resize CropAndResize Cross cross
        cross_entropy csr_add csr_mm csr_mv csr_softmax csr_to_coo csr_to_dense ctc_greedy_decoder ctc_loss
        CTCGreedyDecoder CTCLoss CTCLossV2 Cummax cummax Cummin cummin CumProd cumprod CumSum cumsum
        cumulative_trapezoid CumulativeLogsumexp Custom custom_info_register CustomOpBuilder CustomRegOp
        DataFormatDimMap DataFormatVecPermute DataType dct deepcopy deformable_conv2d deg2rad dense
        dense_to_sparse_coo dense_to_sparse_csr Depend depend depth_to_space DepthToSpace DepthwiseConv2dNative
        derivative det Diag diag diag_embed diagflat diagonal diagonal_scatter DiagPart diff Digamma digamma
        Dilation2D dist Div div divide DivNoNan dot Dropout dropout dropout1d Dropout2D dropout2d Dropout3D dropout3d
        DropoutDoMask DropoutGenMask dsplit dstack dyn_shape DynamicGRUV2 DynamicRNN DynamicShape EditDistance Eig eig
        Einsum einsum Elu elu embedding embedding_lookup EmbeddingLookup Eps eps Equal equal equal_ EqualCount Erf erf
        Erfc erfc Erfinv erfinv EuclideanNorm Exp exp Expand expand expand_dims ExpandDims Expm1 expm1 ExtractGlimpse
        ExtractVolumePatches eye fast_gelu FastGeLU fft fft2 fftfreq fftn fftshift FFTWithSize fill fill_diagonal
        FillDiagonal FillV2 flash_attention_score FlashAttentionScore Flatten flatten flip fliplr flipud float_power
        FloatStatus Floor floor floor_div floor_divide floor_mod FloorDiv FloorMod floormod fmax fmin fmod fold
        fori_loop ForiLoop frac fractional_max_pool2d fractional_max_pool3d FractionalAvgPool FractionalMaxPool
        FractionalMaxPool3DWithFixedKsize FractionalMaxPoolWithFixedKsize full full_like fused_infer_attention_score
        FusedAdaFactor FusedSparseAdam FusedSparseFtrl FusedSparseLazyAdam FusedSparseProximalAdagrad
        FusedWeightScaleApplyMomentum Gamma gamma Gather gather gather_d gather_elements gather_nd GatherD GatherNd
        gaussian_nll_loss Gcd gcd ge GeLU gelu Geqrf geqrf Ger ger get_grad get_vm_impl_fn GetNext GLU glu grad
        Greater greater greater_equal GreaterEqual grid_sample GridSampler2D GridSampler3D group_norm GroupedMatmul
        GroupTopk gru_cell gt gumbel_softmax hamming_window HammingWindow hann_window hardshrink hardsigmoid hardswish
        hardtanh Heaviside heaviside hfft hfft2 hfftn hinge_embedding_loss histc Histogram HistogramFixedWidth
        HistogramSummary HookBackward HShrink HSigmoid hsplit hstack HSVToRGB HSwish huber_loss Hypot hypot i0 idct
        Identity IdentityN idft ifft ifft2 ifftn ifftshift igamma igammac ihfft ihfft2 ihfftn Im2Col im2col Imag imag
        ImageSummary incre_flash_attention index_add index_fill index_select IndexAdd IndexFill IndexPut inner
        inplace_add inplace_index_add inplace_sub inplace_update InplaceAdd InplaceIndexAdd InplaceSub InplaceUpdate
        InplaceUpdateV2 InsertGradientOf interpolate InTopK intopk Inv inv inverse Invert invert InvertPermutation IOU
        iou irfft irfft2 irfftn is_complex is_floating_point is_nonzero is_tensor IsClose isclose IsFinite isfinite
        IsInf isinf IsInstance IsNan isnan isneginf isposinf isreal IsSubClass jacfwd jacrev jet jvp kaiser_window
        kernel kl_div KLDivLoss kron l1_loss L2Loss L2Normalize laplace LARSUpdate layer_norm LayerNorm Lcm lcm ldexp
        le leaky_relu LeftShift Lerp lerp Less less less_equal LessEqual Lgamma lgamma linearize LinearSpace linspace
        ListDiff Load Log log log10 Log1p log1p log2 log_matrix_determinant log_softmax log_uniform_candidate_sampler
        logaddexp logaddexp2 logcumsumexp logdet logical_and logical_not logical_or logical_xor LogicalAnd LogicalNot
        LogicalOr LogicalXor Logit logit LogMatrixDeterminant LogNormalReverse logsigmoid LogSoftmax LogSpace logspace
        logsumexp LogUniformCandidateSampler LowerBound lp_pool1d lp_pool2d LpNorm LRN lrn LSTM lstm_cell Lstsq lstsq
        lt lu_solve lu_unpack LuSolve LuUnpack make_coo_tensor make_csr_tensor make_row_tensor make_sparse_tensor
        MapTensorErase MapTensorGet margin_ranking_loss masked_fill masked_select MaskedFill MaskedScatter
        MaskedSelect MatMul matmul matrix_band_part matrix_determinant matrix_diag matrix_diag_part matrix_exp
        matrix_power matrix_set_diag matrix_solve MatrixBandPart MatrixDeterminant MatrixDiagPartV3 MatrixDiagV3
        MatrixExp MatrixInverse MatrixLogarithm MatrixPower MatrixSetDiagV3 MatrixSolve MatrixTriangularSolve max
        max_pool2d max_pool3d max_unpool1d max_unpool2d max_unpool3d Maximum maximum MaxPool MaxPool3D
        MaxPool3DWithArgmax MaxPoolWithArgmax MaxPoolWithArgmaxV2 MaxUnpool2D MaxUnpool3D mean median Meshgrid
        meshgrid min Minimum minimum mirror_pad MirrorPad Mish mish mm Mod moe_distribute_combine
        moe_distribute_dispatch MoeTokenPermute MoeTokenUnpermute Morph move_to moveaxis movedim MoveTo ms_kernel
        mse_loss msort Mul mul MulNoNan multi_label_margin_loss multi_margin_loss multilabel_margin_loss
        multilabel_soft_margin_loss MultilabelMarginLoss MultiMarginLoss Multinomial multinomial
        multinomial_with_replacement MultinomialWithReplacement multiply MultiplyAdd mv Mvlgamma mvlgamma nan_to_num
        nanmean nanmedian nansum NanToNum narrow ne Neg neg negative NeighborExchangeV2 NextAfter nextafter nll_loss
        NLLLoss NMSWithMask NonDeterministicInts NonMaxSuppressionV3 NonMaxSuppressionWithOverlaps NonZero nonzero
        NoRepeatNGram norm normal normalize not_equal NotEqual NPUAllocFloatStatus NPUClearFloatStatus
        NPUClearFloatStatusV2 NPUGetFloatStatus NPUGetFloatStatusV2 NthElement NuclearNorm numel one_hot OneHot ones
        ones_like OnesLike op_info_register Orgqr orgqr ormqr outer Pack pack Pad pad Padding padding PadV3
        parallel_concat ParallelConcat ParameterizedTruncatedNormal Pdist pdist permute pixel_shuffle pixel_unshuffle
        Poisson poisson Polar polar Polygamma polygamma population_count PopulationCount positive Pow pow PReLU prelu
        prim_attr_register PrimitiveWithCheck PrimitiveWithInfer print_ prod prompt_flash_attention PsROIPooling Pull
        Push PyExecute Qr Quantile quantile rad2deg RaggedRange rand rand_like randint randint_like randn randn_like
        random_categorical random_gamma random_poisson RandomCategorical RandomChoiceWithMask RandomGamma
        RandomPoisson RandomShuffle Randperm randperm RandpermV2 Range range rank ravel Real real RealDiv rearrange
        Reciprocal reciprocal ReduceAll ReduceAny ReduceMax ReduceMean ReduceMin ReduceProd ReduceStd ReduceSum ReLU
        relu ReLU6 relu6 ReLUV2 ReLUV3 remainder RemoteEmbeddingTable Renorm renorm repeat_elements repeat_interleave
        Reshape reshape resize_bicubic resize_bilinear resize_linear_1d resize_nearest_neighbor ResizeArea
        ResizeBicubic ResizeBilinear ResizeBilinearV2 ResizeLinear1D ResizeNearestNeighbor ResizeNearestNeighborV2
        reverse reverse_sequence ReverseSequence ReverseV2 rfft rfft2 rfftfreq rfftn RGBToHSV RightShift Rint rms_norm
        RmsNorm RNNTLoss ROIAlign Roll roll rot90 rotary_position_embedding RotaryPositionEmbedding Round round
        row_tensor_add row_tensor_get_dense_shape rrelu Rsqrt rsqrt SameTypeShape sample_distorted_bounding_box_v2
        SampleDistortedBoundingBoxV2 scalar_cast scalar_to_array scalar_to_tensor ScalarAdd ScalarCast ScalarDiv
        ScalarMul ScalarSub ScalarSummary ScaleAndTranslate Scan scan scatter scatter_add scatter_div scatter_max
        scatter_min scatter_mul scatter_nd scatter_nd_add scatter_nd_div scatter_nd_max scatter_nd_min scatter_nd_mul
        scatter_nd_sub scatter_nd_update scatter_sub scatter_update ScatterAdd ScatterAddWithAxis ScatterDiv
        ScatterMax ScatterMin ScatterMul ScatterNd ScatterNdAdd ScatterNdDiv ScatterNdMax ScatterNdMin ScatterNdMul
        ScatterNdSub ScatterNdUpdate ScatterNonAliasingAdd ScatterSub ScatterUpdate search_sorted SearchSorted
        searchsorted SegmentMax SegmentMean SegmentMin SegmentProd SegmentSum Select select select_scatter SeLU selu
        sequence_mask SGD sgn Shape shape shape_ shuffle Sigmoid sigmoid SigmoidCrossEntropyWithLogits Sign sign
        signbit silent_check SiLU silu Sin sin Sinc sinc Sinh sinh size Slice slice slice_scatter SlogDet slogdet
        smooth_l1_loss SmoothL1Loss soft_margin_loss soft_shrink SoftMarginLoss Softmax softmax
        SoftmaxCrossEntropyWithLogits softmin Softplus softplus SoftShrink softshrink Softsign softsign
        solve_triangular Sort sort space_to_batch_nd space_to_depth SpaceToBatch SpaceToBatchND SpaceToDepth
        sparse_add sparse_concat SparseApplyAdadelta SparseApplyAdagrad SparseApplyAdagradV2 SparseApplyFtrl
        SparseApplyFtrlV2 SparseApplyProximalAdagrad SparseApplyRMSProp SparseGatherV2 SparseSlice
        SparseSoftmaxCrossEntropyWithLogits SparseTensorDenseAdd SparseTensorDenseMatmul SparseToDense Split split
        SplitV SplitWithSize Sqrt sqrt Square square SquaredDifference SquareSumAll Squeeze squeeze Stack stack
        standard_laplace standard_normal StandardLaplace StandardNormal std std_mean STFT stft stop_gradient
        StopGradient strided_slice StridedSlice Sub sub subtract sum Svd svd swapaxes swapdims SyncBatchNorm t tail
        take Tan tan Tanh tanh tanhshrink TBERegOp tensor_dot tensor_dump tensor_scatter_add tensor_scatter_div
        tensor_scatter_elements tensor_scatter_max tensor_scatter_min tensor_scatter_mul tensor_scatter_sub
        tensor_scatter_update tensor_slice tensor_split TensorAdd TensorDump TensorScatterAdd TensorScatterDiv
        TensorScatterElements TensorScatterMax TensorScatterMin TensorScatterMul TensorScatterSub TensorScatterUpdate
        TensorShape TensorSlice TensorSummary threshold Tile tile top_k TopK topk Trace trace trans Transpose
        transpose TransposeExt trapz TridiagonalMatMul TridiagonalSolve Tril tril tril_indices TrilIndices
        triplet_margin_loss TripletMarginLoss Triu triu triu_indices TriuIndices true_divide Trunc trunc truncate_div
        truncate_mod TruncateDiv TruncatedNormal TruncateMod tuple_to_array TupleToArray typeof unbind unfold uniform
        uniform_candidate_sampler UniformCandidateSampler UniformInt UniformReal Unique unique unique_consecutive
        unique_with_pad UniqueConsecutive UniqueWithPad Unpack UnravelIndex unsorted_segment_max unsorted_segment_min
        unsorted_segment_prod unsorted_segment_sum UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd
        UnsortedSegmentSum unsqueeze Unstack unstack UpdateState UpperBound upsample UpsampleNearest3D
        UpsampleTrilinear3D value_and_grad vander var var_mean vecdot view_as_real vjp vmap vsplit vstack where
        while_loop WhileLoop WholeToSparse Xdivy xdivy Xlogy xlogy zeros zeros_like Zeta zeta Zipf
        """,
    "mint": """
        abs absolute acos acosh add addbmm addcdiv addcmul addmm addmv all allclose amax amin any arange arccos
        arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argsort asin asinh atan atan2 atanh baddbmm
        bernoulli bincount bitwise_and bitwise_or bitwise_xor bmm broadcast_to bucketize cat cdist ceil chunk clamp
        clone complex concat conv cos cosh count_nonzero cross cummax cummin cumprod cumsum dequantize diag diff
        distributed div divide dot dstack einsum empty empty_like eq equal erf erfc erfinv exp exp2 expand_as expm1
        eye fix flatten flip float_power floor floor_divide fmod frac full full_like gather gcd ge greater
        greater_equal gt hann_window histc hypot imag index_add index_select inner inverse isclose isfinite isinf
        isneginf item lcm le lerp less less_equal linalg linspace log log10 log1p log2 logaddexp logaddexp2
        logical_and logical_not logical_or logical_xor logsumexp lt manual_seed masked_fill masked_fill_
        masked_scatter masked_select matmul max maximum mean median meshgrid min minimum mm mul multinomial mv
        nan_to_num nansum narrow ne neg negative nn nonzero norm normal not_equal numel ones ones_like optim outer
        permute polar pow prod quantize rand rand_like randint randint_like randn randn_like randperm ravel real
        reciprocal remainder repeat_interleave reshape roll round rsqrt scatter scatter_add searchsorted seed select
        sigmoid sign sin sinc sinh slogdet softmax sort special split sqrt square squeeze stack std std_mean sub
        subtract sum swapaxes t take tan tanh tensor_split tile topk trace transpose trapz triangular_solve tril triu
        true_divide trunc unbind unique unique_consecutive unsqueeze var var_mean view_as where xlogy zeros zeros_like
        """,
    "mint.nn": """
        AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AvgPool2d AvgPool3d BatchNorm1d
        BatchNorm2d BatchNorm3d BCELoss BCEWithLogitsLoss ConstantPad1d ConstantPad2d ConstantPad3d Conv2d Conv3d
        ConvTranspose2d CosineEmbeddingLoss CrossEntropyLoss Dropout Dropout2d ELU Embedding Flatten Fold functional
        GELU GLU GroupNorm Hardshrink Hardsigmoid Hardswish Identity KLDivLoss L1Loss LayerNorm LeakyReLU Linear
        LogSigmoid LogSoftmax MaxPool2d MaxUnpool2d Mish MSELoss NLLLoss PixelShuffle PReLU ReflectionPad1d
        ReflectionPad2d ReflectionPad3d ReLU ReLU6 ReplicationPad1d ReplicationPad2d ReplicationPad3d SELU Sigmoid
        SiLU SmoothL1Loss Softmax Softplus Softshrink SyncBatchNorm Tanh Threshold Unfold Upsample ZeroPad1d ZeroPad2d
        ZeroPad3d
        """,
    "mint.nn.functional": """
        adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d avg_pool1d
        avg_pool2d avg_pool3d batch_norm binary_cross_entropy binary_cross_entropy_with_logits conv1d conv2d conv3d
        conv_transpose2d cosine_embedding_loss cross_entropy dropout dropout2d elu elu_ embedding fold gelu glu
        grid_sample group_norm hardshrink hardsigmoid hardswish interpolate kl_div l1_loss layer_norm leaky_relu
        linear log_softmax logsigmoid max_pool2d max_unpool2d mish mse_loss nll_loss normalize one_hot pad
        pixel_shuffle prelu relu relu6 relu_ rms_norm selu sigmoid silu smooth_l1_loss softmax softplus softshrink
        tanh threshold unfold
        """,
    "train": """
        amp auc BackupAndRestore BleuScore callback ConfusionMatrix ConfusionMatrixMetric connect_network_with_dataset
        ConvertModelUtils ConvertNetUtils CosineSimilarity data_sink DatasetHelper Dice FlopsUtilizationCollector
        HausdorffDistance MeanSurfaceDistance mind_ir_pb2 OcclusionSensitivity OnRequestExit Perplexity print_pb2 ROC
        RootMeanSquareDistance summary_pb2 SummaryLandscape SummaryRecord TFTRegister TrainFaultTolerance
        """,
    "amp": """
        auto_mixed_precision build_train_network custom_mixed_precision get_black_list get_white_list init_status
        """,
    "parallel": """
        build_searched_strategy convert_checkpoint_by_rank convert_checkpoints DistributedModule function
        get_algo_parameters load_segmented_checkpoints merge_pipeline_strategys merge_sliced_parameter
        parameter_broadcast rank_list_for_convert reshard restore_group_info_list set_op_strategy_config strategy
        sync_pipeline_shared_parameters transform_checkpoint_by_rank
        """,
    "parallel.nn": """
        AttentionMask CrossEntropyLoss EmbeddingOpParallelConfig FeedForward FixedSparseAttention MoEConfig
        MultiHeadAttention OpParallelConfig Transformer TransformerDecoder TransformerDecoderLayer TransformerEncoder
        TransformerEncoderLayer TransformerOpParallelConfig TransformerRecomputeConfig VocabEmbedding
        """,
    "communication": """
        BACKEND_HCCL BACKEND_NCCL comm_func DEFAULT_WORLD_COMM_GROUP get_comm_name get_group_size get_local_rank_size
        get_process_group_ranks HCCL_WORLD_COMM_GROUP MCCL_WORLD_COMM_GROUP NCCL_WORLD_COMM_GROUP
        """,
    "dataset": """
        AGNewsDataset AmazonReviewDataset ArgoverseDataset audio BatchInfo BuiltinSampler Caltech101Dataset
        Caltech256Dataset CelebADataset Cifar100Dataset CityscapesDataset CLUEDataset CMUArcticDataset CocoDataset
        compare config CoNLL2000Dataset CSVDataset Dataset DatasetCache DBpediaDataset deserialize DistributedSampler
        DIV2KDataset DSCallback EMnistDataset engine EnWik9Dataset FakeImageDataset FashionMnistDataset FlickrDataset
        Flowers102Dataset Food101Dataset Graph GraphData GTZANDataset imagefolder ImageFolderDataset IMDBDataset
        InMemoryGraphDataset IWSLT2016Dataset IWSLT2017Dataset KITTIDataset KMnistDataset LFWDataset LibriTTSDataset
        LJSpeechDataset LSUNDataset ManifestDataset MindDataset Multi30kDataset MultiArrayDataset NeighborSampling
        OBSMindDataset OmniglotDataset OutputFormat PaddedDataset PennTreebankDataset PhotoTourDataset PKSampler
        Places365Dataset QMnistDataset RandomDataset RandomSampler RenderedSST2Dataset SamplingStrategy SBDataset
        SBUDataset Schema SemeionDataset SequentialSampler serialize show Shuffle SogouNewsDataset
        SpeechCommandsDataset SQuADDataset SST2Dataset STL10Dataset SubsetRandomSampler SubsetSampler SUN397Dataset
        SVHNDataset sync_wait_for_dataset TedliumDataset text TextFileDataset TFRecordDataset transforms UDPOSDataset
        USPSDataset utils vision VOCDataset WaitedDSCallback WeightedRandomSampler WIDERFaceDataset WikiTextDataset
        YahooAnswersDataset YelpReviewDataset YesNoDataset zip
        """,
    "dataset.vision": """
        AdjustBrightness AdjustContrast AdjustGamma AdjustHue AdjustSaturation AdjustSharpness Affine ApplyPolicy
        AutoAugment AutoAugmentPolicy AutoContrast Border BoundingBoxAugment c_transforms CenterCrop ConvertColor
        ConvertMode Crop CutMixBatch CutOut Decode DecodeVideo DeviceTarget encode_jpeg encode_png Equalize Erase
        FiveCrop GaussianBlur get_image_num_channels get_image_size Grayscale HorizontalFlip HsvToRgb HWC2CHW
        ImageBatchFormat ImageReadMode Inter Invert LinearTransformation MixUp MixUpBatch Normalize NormalizePad
        not_random Pad PadToSize Perspective Posterize py_transforms RandAugment RandomAdjustSharpness RandomAffine
        RandomAutoContrast RandomColor RandomColorAdjust RandomCrop RandomCropDecodeResize RandomCropWithBBox
        RandomEqualize RandomErasing RandomGrayscale RandomHorizontalFlip RandomHorizontalFlipWithBBox RandomInvert
        RandomLighting RandomOrder RandomPerspective RandomPosterize RandomResize RandomResizedCrop
        RandomResizedCropWithBBox RandomResizeWithBBox RandomRotation RandomSelectSubpolicy RandomSharpness
        RandomSolarize RandomVerticalFlip RandomVerticalFlipWithBBox read_file read_image read_video
        read_video_timestamps ReadVideo Rescale Resize ResizedCrop ResizeWithBBox RgbToHsv Rotate SliceMode
        SlicePatches Solarize TenCrop ToNumpy ToPIL ToTensor ToType TrivialAugmentWide UniformAugment utils
        VerticalFlip VideoDecoder write_file write_jpeg write_png
        """,
    "dataset.transforms": """
        c_transforms Compose Concatenate Duplicate Fill Mask not_random OneHot PadEnd Plugin py_transforms
        PyTensorOperation RandomApply RandomChoice RandomOrder Relational Slice TypeCast Unique
        """,
    "common.initializer": "Dirac HeNormal HeUniform Identity Orthogonal Sparse VarianceScaling XavierNormal",
    "runtime": """
        communication_stream current_stream default_stream DeviceCtx empty_cache Event max_memory_allocated
        max_memory_reserved memory_allocated memory_replay memory_reserved memory_stats memory_summary MemPool
        PluggableAllocator reset_max_memory_allocated reset_max_memory_reserved reset_peak_memory_stats
        set_cpu_affinity set_cur_stream set_kernel_launch_capture Stream StreamCtx synchronize
        """,
    "context": "get_offload_context get_ps_context K_CONTEXT reset_ps_context set_offload_context set_ps_context",
    "log": "exception get_level get_log_config set_level vlog",
}

# module paths that this package has no page for: importable, and so is any name from them
MODULES = """
    boost boost.base boost.dim_reduce boost.grad_accumulation common.file_system common.generator common.hook_handle
    common.jit_config common.jit_context common.lazy_inline common.mutable common.no_inline common.np_dtype
    common.recompute common.sparse_tensor communication.comm_func dataset.audio dataset.callback dataset.debug
    dataset.engine.cache_client dataset.engine.samplers dataset.engine.serializer_deserializer dataset.samplers
    dataset.text dataset.text.transforms dataset.text.utils dataset.transforms.py_transforms dataset.utils
    dataset.vision.py_transforms device_context device_context.ascend device_context.ascend.op_debug
    device_context.ascend.op_precision device_context.ascend.op_tuning device_context.cpu device_context.cpu.op_tuning
    device_context.gpu device_context.gpu.op_precision device_context.gpu.op_tuning experimental experimental.es
    experimental.llm_boost experimental.map_parameter experimental.optim experimental.optim.adam
    experimental.optim.adamw experimental.optim.lr_scheduler experimental.optim.sgd graph hal include lite mindrecord
    mindspore_version mint.linalg mint.optim mint.special multiprocessing nn.distribution nn.grad
    nn.grad.cell_grad nn.layer.channel_shuffle nn.layer.combined nn.layer.flash_attention nn.layer.image nn.layer.math
    nn.layer.padding nn.layer.quant nn.layer.rnn_cells nn.layer.rnns nn.layer.thor_layer nn.layer.timedistributed
    nn.optim.adadelta nn.optim.adafactor nn.optim.adamax nn.optim.adasum nn.optim.asgd nn.optim.ftrl nn.optim.lazyadam
    nn.optim.proximal_ada_grad nn.optim.rprop nn.optim.tft_wrapper nn.optim.thor nn.probability nn.probability.bijector
    nn.probability.distribution nn.reinforcement nn.sparse nn.transformer nn.transformer.layers nn.transformer.loss
    nn.transformer.moe nn.transformer.op_parallel_config nn.transformer.transformer nn.utils.init
    offline_debug ops.auto_generate.gen_ops_def
    ops.auto_generate.gen_ops_prim ops.bprop_mindir ops.composite.env_ops ops.composite.math_ops
    ops.composite.multitype_ops ops.composite.vmap_ops ops.custom_ops ops.deprecated ops.extend ops.function.array_func
    ops.function.clip_func ops.function.debug_func ops.function.fft_func ops.function.grad ops.function.grad.grad_func
    ops.function.image_func ops.function.linalg_func ops.function.math_func ops.function.nn_func ops.function.other_func
    ops.function.parameter_func ops.function.random_func ops.function.reshard_func ops.function.sparse_func
    ops.function.spectral_func ops.function.vmap_func ops.op_info_register ops.op_selector ops.operations.array_ops
    ops.operations.custom_ops ops.operations.debug_ops ops.operations.image_ops ops.operations.linalg_ops
    ops.operations.random_ops ops.operations.rl_ops ops.operations.sparse_ops ops.operations.spectral_ops ops.operator
    ops.signature ops.silent_check ops.tensor_method ops.vm_impl_registry parallel.cluster parallel.distributed
    parallel.function parallel.function.reshard_func parallel.mpi parallel.nn.layers parallel.nn.loss parallel.nn.moe
    parallel.nn.op_parallel_config parallel.nn.parallel_cell_wrapper parallel.nn.parallel_grad_reducer
    parallel.nn.transformer parallel.parameter_broadcast parallel.strategy profiler profiler.common profiler.envprofiler
    profiler.mstx profiler.schedule rewrite rewrite.api run_check safeguard scipy scipy.linalg scipy.optimize
    scipy.sparse train.anf_ir_pb2 train.bert_score train.callback.callback train.data_sink train.dataset_helper
    train.metrics.metric train.mind_ir_pb2 train.node_strategy_pb2 train.summary train.summary.summary_record
    train.summary.writer train.train_thor utils utils.dryrun utils.runtime_execution_order_check utils.sdc_detect
    utils.stress_detect utils.utils version
    """
