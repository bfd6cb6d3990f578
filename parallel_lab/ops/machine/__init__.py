"""What makes an operator of a declaration: `@op`, labels, sharding rules, Primitive classes, composed operators."""
