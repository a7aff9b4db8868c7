from feedline.cntk._table import Names

NETWORKS = {
    f"cntk.{m}": Names()
    for m in [
        "ops",
        "ops.functions",
        "ops.sequence",
        "layers",
        "layers.layers",
        "layers.blocks",
        "layers.sequence",
        "layers.higher_order_layers",
        "layers.typing",
        "losses",
        "metrics",
        "random",
        "initializer",
        "default_options",
        "variables",
    ]
}
