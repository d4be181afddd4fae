// Adds up the products of linears and attention.
#include "host/compile/unit_flops.hpp"

#include "host/graph/op_table.hpp"

namespace chassis {
namespace {

// Products per token of an op's forward.
double products_of(const Program& program, const BlockType& block, const Op& op, const DimSizes& sizes) {
  return op.spec().products == nullptr ? 0.0 : op.spec().products(program, block, op, sizes);
}

}  // namespace

// A product has two operations; backward has one product for the input and one for the other operand.
std::vector<double> unit_flops(const Program& program, const ParameterTable& parameters, const DimSizes& sizes) {
  std::vector<double> out;
  for (const Chain& chain : program.chains)
    for (const uint32_t type : chain.blocks) {
      const BlockType& block = program.blocks[type];
      double sum = 0.0;
      for (const Op& op : block.ops) {
        const bool frozen = op.spec().is_linear() && !parameters.at(out.size(), op.params[0]).trainable;
        sum += (frozen ? 4.0 : 6.0) * products_of(program, block, op, sizes);
      }
      out.push_back(sum);
    }
  return out;
}

double flops_per_token(const Program& program, const DimSizes& sizes) {
  double products = 0.0;
  for (const Chain& chain : program.chains)
    for (const uint32_t type : chain.blocks)
      for (const Op& op : program.blocks[type].ops) products += products_of(program, program.blocks[type], op, sizes);
  return 6.0 * products;
}

}  // namespace chassis
