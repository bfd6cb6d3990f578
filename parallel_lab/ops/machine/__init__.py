"""What makes an operator of one declaration: `@op`, labels, sharding rules, Primitive classes, operators made of
others.
"""
