// The op table: one row for each op of chassis/op.h, with everything that the host knows about it. Passes ask the row
// for a property; none tests an id. A new op is a row here, its text in chassis/op.h, its case for conformance tests
// (host/conformance/ops_checks.cpp) and its providers.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "host/graph/dim_sizes.hpp"
#include "host/graph/program.hpp"

namespace chassis {

// How an axis of the mesh that divides named dims, or positions, treats the op (tensor_layout.cpp,
// context_layout.cpp).
enum class OpPlacement : uint8_t {
  kPointwise,      // each position, and each element of a divided dim, by itself
  kLinear,         // contracts the last axis of its weight
  kEmbedding,      // looks rows of its weight up
  kAttention,      // each head by itself, over the positions of a row
  kLoss,           // sums over positions; needs all classes, or their part of the sum
  kTokenLogp,      // as kLoss, with a value for each position
  kTopkLogp,       // as kTokenLogp, with values of further ids too
  kChannelScale,   // scales the last dims by a weight with the same dims
  kConcat,         // joins each head with a part of its own or of all
  kDispatch,       // gives each expert its rows: all ops up to kCombine need whole rows
  kGroupedLinear,  // contracts the last axis of its weight, for each expert
  kCombine,        // sums the rows of each token
  kRowSums,        // sums over the positions of each row, besides an output that stays each rank's own
  kOfRowSums,      // reads such sums, and labels of whole rows
  kOwn,            // a plugin's own op: by the dims that it declares to mix
  kNone,           // a collective, or no op
};

// Attributes of top_experts that only the host reads (router_pass.cpp), and of load_balance.
inline constexpr char kAuxWeightAttr[] = "aux_weight", kBalanceAttr[] = "balance";

struct AttrSpec {
  std::string_view name;
  uint32_t tag;  // CHASSIS_ATTR_…
  bool required = true;
};

class OpRule;  // op_table.cpp: checks one op and gives it its outputs

struct OpSpec {
  std::string_view id;
  struct Count {
    uint32_t min = 0, max = 0;
  };
  Count inputs = {}, params = {};
  std::span<const AttrSpec> attrs = {};
  void (*infer)(OpRule& rule) = nullptr;  // checks what the counts and attrs do not say, and adds the outputs
  OpPlacement placement = OpPlacement::kPointwise;
  bool is_cheap = false;     // recompute = "selective" computes it again rather than keep its output
  bool is_view = false;      // its output is its input, in another shape
  bool is_random = false;    // reads the random bits of the step; left out where nothing is trained
  bool shares_grad = false;  // the gradient of each input is that of the output
  bool is_choice = false;    // its output decides which values are computed: kept for backward, never computed again
  // The attribute with the length of row from which the op computes all positions of the row otherwise; "": none.
  std::string_view length_attr = "";
  // Multiply-adds per token of a forward over rows of those sizes; NULL: none worth counting.
  double (*products)(const Program& program, const BlockType& block, const Op& op, const DimSizes& sizes) = nullptr;

  bool is_attention() const { return placement == OpPlacement::kAttention; }
  bool is_linear() const { return placement == OpPlacement::kLinear; }
  // Reads labels, of which those of ignore_index have no effect.
  bool reads_labels() const {
    return placement == OpPlacement::kLoss || placement == OpPlacement::kTokenLogp ||
           placement == OpPlacement::kTopkLogp;
  }
};

// All rows, in the order of chassis/op.h.
std::span<const OpSpec> op_table();

// Gives the op its outputs by its row. `output_dims` as in chassis_op_desc_t; `own_type`: the type of the output of a
// plugin's own op. Throws a plugin error that names block, op and dims.
void infer_outputs(const Program& program, BlockType& block, Op& op, const std::vector<DimId>& output_dims,
                   GraphValueType own_type = GraphValueType::kCompute);

// True for the ops of chassis/op.h, and for names in the form of a plugin's own op, "domain/name".
bool is_op_name(std::string_view id);

}  // namespace chassis
