"""The Triton kernels in a program that was lowered for a GPU, on any machine."""

import jax
from jaxlib.mlir import ir
from jaxlib.triton import dialect


def verified(lowered: jax.stages.Lowered) -> list[str]:
  """Names of the kernels, in order; raises if Triton would not accept one of them.

  Lowering itself writes kernels down without a check of their types.
  """
  names = []

  def visit(operation):
    for inner in (op for region in operation.regions for block in region for op in block):
      visit(inner.operation)
    if operation.name != "stablehlo.custom_call":
      return
    if "triton" in ir.StringAttr(operation.attributes["call_target_name"]).value:
      config = operation.attributes["mhlo.backend_config"]
      given = {config[i].name: config[i].attr for i in range(len(config))}
      with ir.Context() as context:
        dialect.register_dialect(context)
        assert ir.Module.parse(ir.StringAttr(given["ir"]).value_bytes).operation.verify()
      names.append(ir.StringAttr(given["name"]).value)

  visit(lowered.compiler_ir().operation)
  return names
