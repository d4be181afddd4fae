// Workspaces as the formulas allocate them: in the dtype of norms and losses, in slabs where they go through slabs.
#include "workspace.hpp"

#include "chassis/cost.hpp"

namespace aten {
namespace {

// The unit of most formulas.
struct Units {
  explicit Units(const NodeView& node)
      : dtype(node.has_param(0) ? node.param(0).dtype() : node.input(0).dtype()),
        input(static_cast<uint64_t>(node.input(0).num_elements())),
        wide_bytes(dtype_bytes(wide(dtype))),
        narrow(dtype == wide(dtype) ? 0 : 1),
        slab(std::min<uint64_t>(input, kSlabBytes / 4)) {}

  uint32_t dtype;
  uint64_t input;       // elements of input 0
  uint64_t wide_bytes;  // of an element in wide(dtype)
  uint64_t narrow;      // 1 if wide(dtype) is another dtype, so that formulas cast first
  uint64_t slab;        // elements of a slab of input 0
};

bool is_host_product(const NodeView& node, uint32_t dtype) {
  return dtype == CHASSIS_DTYPE_BF16 && node.device_type() == CHASSIS_DEVICE_CPU;
}

// Linears whose products are joined, or added to another value.
void branch_workspace(const Host& host, const NodeView& node, bool is_group, Infer& out) {
  const uint32_t dtype = node.input(0).dtype();
  const int64_t features = node.param(0).size(1), rows = node.input(0).num_elements() / features;
  int64_t columns = 0;
  for (int i = 0; i < node.num_params(); ++i) columns += node.param(i).size(0);
  const uint64_t bytes = dtype_bytes(dtype), weights = static_cast<uint64_t>(columns * features);
  // Joined outputs and stacked weights; for the sum, scaled rows.
  const uint64_t copies = is_group ? (static_cast<uint64_t>(rows * columns) + weights) * bytes
                                   : static_cast<uint64_t>(rows * features) * bytes;
  const uint64_t widened =
      is_host_product(node, dtype)
          ? gemm_scratch_bytes(host, dtype, CHASSIS_DTYPE_F32, columns, features, rows)
          : static_cast<uint64_t>(dtype == wide(dtype) ? 0 : rows * (features + columns)) * sizeof(float);
  const uint64_t product = is_group ? weights * dtype_bytes(wide(dtype)) : 0;
  out.workspace(is_group ? copies : 0, any_param_needs_grad(node) ? copies + product + widened : copies);
}

constexpr uint64_t kIndexBytes = 8;  // of an i64

// Kernels that copy rows of experts, or add them up: the order of rows, and slabs of `width` numbers.
struct RowBytes {
  RowBytes(const NodeView& node, int64_t width)
      : u(node),
        pairs(static_cast<uint64_t>(node.input(1).num_elements())),
        weighted(node.has_input(2)),
        row_slab(std::min<uint64_t>(pairs * static_cast<uint64_t>(width), kSlabBytes / 4)),
        token_slab(std::min<uint64_t>(
            pairs / static_cast<uint64_t>(node.input(1).size(2)) * static_cast<uint64_t>(width), kSlabBytes / 4)) {}

  // The order of rows takes two lists of indices, its keys and masks; then a row of each pair, a mask and a weight.
  uint64_t order() const { return pairs * (3 * kIndexBytes + 1); }
  uint64_t numbers() const { return pairs * (2 * kIndexBytes + 1 + (weighted ? u.wide_bytes : 0)); }
  uint64_t copy(uint64_t slab) const { return slab * (u.wide_bytes + u.narrow * dtype_bytes(u.dtype)); }
  uint64_t spread() const { return std::max(order(), numbers() + (weighted ? copy(row_slab) : 0)); }
  uint64_t sum() const { return std::max(order(), numbers() + token_slab * u.wide_bytes + copy(token_slab)); }
  uint64_t grad_weights() const {
    return std::max(order(), numbers() + u.narrow * token_slab * u.wide_bytes + copy(token_slab));
  }

  Units u;
  uint64_t pairs;
  bool weighted;
  uint64_t row_slab, token_slab;
};

}  // namespace

bool any_param_needs_grad(const NodeView& node) {
  for (int i = 0; i < node.num_params(); ++i)
    if (node.has_param(i) && node.param(i).needs_grad()) return true;
  return false;
}

int64_t wide_columns(const Host& host, const NodeView& node) {
  constexpr int64_t kPartBytes = int64_t{8} << 20;
  const int64_t vocab = node.param(0).size(0), in = node.param(0).size(1);
  const uint32_t dtype = node.param(0).dtype();
  if (node.device_type() != CHASSIS_DEVICE_CPU)
    return multiplies_into_wide(node.device_type(), dtype, wide(dtype)) ? vocab : 0;
  if (dtype != CHASSIS_DTYPE_BF16) return 0;
  const int64_t rows = loss_chunk_rows(node.input(1).num_elements(), vocab);
  if (gemm_scratch_bytes(host, dtype, CHASSIS_DTYPE_F32, rows, vocab, in) == 0) return vocab;
  // The host widens the weights for a product on processors without products of bf16: those of a part at a time.
  return std::clamp<int64_t>(kPartBytes / (int64_t{sizeof(float)} * in), 1, vocab);
}

void head_workspace(const Host&, const NodeView& node, Infer& out) {
  const Units u(node);
  const bool is_partial = node.op(node.num_ops() - 1).id() == "partial_cross_entropy";
  const int64_t rows = node.input(1).num_elements(), vocab = node.param(0).size(0);
  const uint64_t chunk = loss_chunk_bytes(rows, vocab, u.dtype);
  const auto logits = static_cast<uint64_t>(loss_chunk_rows(rows, vocab) * vocab) * u.wide_bytes;
  // Exponentials of the logits, and the derivatives of the cap.
  out.workspace(chunk + (is_partial ? logits : 0), chunk + (node.num_ops() == 3 ? logits : 0));
}

void partial_cross_entropy_workspace(const Host&, const NodeView& node, Infer& out) {
  const Units u(node);
  out.workspace((1 + u.narrow) * u.input * u.wide_bytes, (1 + u.narrow) * u.input * u.wide_bytes);
}

void cross_entropy_workspace(const Host&, const NodeView& node, Infer& out) {
  const Units u(node);
  out.workspace(u.input * u.wide_bytes, u.narrow * u.input * u.wide_bytes);
}

void token_logp_workspace(const Host& host, const NodeView& node, Infer& out) {
  const Units u(node);
  const int64_t rows = node.input(1).num_elements(), vocab = node.param(0).size(0), columns = wide_columns(host, node);
  uint64_t chunk = loss_chunk_bytes(rows, vocab, u.dtype);
  if (is_host_product(node, u.dtype))
    chunk += gemm_scratch_bytes(host, u.dtype, CHASSIS_DTYPE_F32, loss_chunk_rows(rows, vocab), columns,
                                node.param(0).size(1));
  const uint64_t slopes =
      node.num_ops() == 3 ? static_cast<uint64_t>(loss_chunk_rows(rows, vocab) * vocab) * u.wide_bytes : 0;
  const uint64_t scaled = (1 + u.narrow) * u.slab * u.wide_bytes;
  out.workspace(node.training() ? chunk + slopes : chunk,
                any_param_needs_grad(node) ? std::max(chunk + slopes, scaled) : scaled);
}

void topk_logp_workspace(const Host&, const NodeView& node, Infer& out) {
  const Units u(node);
  const auto rows = static_cast<uint64_t>(node.input(1).num_elements()),
             ids = static_cast<uint64_t>(node.input(2).num_elements());
  uint64_t chunk = u.input * u.wide_bytes, first = chunk;
  if (node.has_param(0)) {
    const int64_t vocab = node.param(0).size(0), count = node.input(1).num_elements();
    first = loss_chunk_bytes(count, vocab, u.dtype);
    chunk = static_cast<uint64_t>(loss_chunk_rows(count, vocab) * vocab) * u.wide_bytes;
  }
  // The sums of rows, and for ids an index, a mask and a value, once as they are and once changed.
  const uint64_t sums = 4 * (rows + ids) * (sizeof(int64_t) + u.wide_bytes);
  const uint64_t slopes = node.num_ops() == 3 ? chunk : 0;
  // Exponentials; in backward also the logits at the temperature.
  out.workspace(first + chunk + sums, first + 2 * chunk + slopes + sums);
}

void score_workspace(const Host& host, const NodeView& node, Infer& out) {
  const Units u(node);
  const int64_t labels = node.param(0).size(0), in = node.param(0).size(1);
  const auto weight = static_cast<uint64_t>(labels * in);
  uint64_t forward = 0;
  if (is_host_product(node, u.dtype))
    forward = gemm_scratch_bytes(host, u.dtype, CHASSIS_DTYPE_F32, static_cast<int64_t>(u.input) / in, labels, in);
  else if (u.narrow && !multiplies_into_wide(node.device_type(), u.dtype, wide(u.dtype)))
    forward = (u.slab + weight) * u.wide_bytes;
  out.workspace(forward, (u.slab + u.narrow * weight) * u.wide_bytes);
}

void channel_scale_workspace(const Host&, const NodeView& node, Infer& out) {
  const Units u(node);
  out.workspace(0, node.param(0).needs_grad() ? u.slab * u.wide_bytes : 0);
}

void concat_workspace(const Host&, const NodeView& node, Infer& out) {
  const Units u(node);
  const bool sums = node.input(1).size(2) != node.input(0).size(2);
  out.workspace(0, sums ? static_cast<uint64_t>(node.input(1).num_elements()) * u.wide_bytes : 0);
}

void top_experts_workspace(const Host&, const NodeView& node, Infer& out) {
  const Units u(node);
  const int64_t groups = node.op(0).attr_int("groups", 1), top_groups = node.op(0).attr_int("top_groups", groups);
  // Logits, their sorted copy and its indices; of groups, the indices and logits of the experts to choose from.
  uint64_t bytes = u.input * (2 * u.wide_bytes + kIndexBytes);
  if (groups > 1) {
    const uint64_t candidates = u.input / static_cast<uint64_t>(groups) * static_cast<uint64_t>(top_groups);
    bytes = std::max(u.input * u.wide_bytes + candidates * (kIndexBytes + u.wide_bytes),
                     candidates * (2 * kIndexBytes + 2 * u.wide_bytes));
  }
  out.workspace(bytes, 0);
}

void expert_weights_workspace(const Host&, const NodeView& node, Infer& out) {
  const Units u(node);
  const auto pairs = static_cast<uint64_t>(node.input(1).num_elements());
  // Indices, a mask and scores; in backward also terms and a product of both. The scores of all experts become the
  // gradient.
  const uint64_t scores = pairs * (kIndexBytes + 1 + u.wide_bytes);
  out.workspace(scores + (node.op(0).attr_string("score") == "softmax" ? u.input * u.wide_bytes : 0),
                scores + 2 * pairs * u.wide_bytes);
}

void router_stats_workspace(const Host&, const NodeView& node, Infer& out) {
  const Units u(node);
  const auto pairs = static_cast<uint64_t>(node.input(1).num_elements());
  const uint64_t tokens = u.input / static_cast<uint64_t>(std::max<int64_t>(1, node.input(0).size(2)));
  // Forward has the ones of the counts with their indices, then logits and softmaxes; backward softmaxes and terms.
  const uint64_t ones = pairs * (kIndexBytes + 1 + u.wide_bytes) + u.input * u.wide_bytes;
  const uint64_t softmaxes = tokens * (1 + 2 * u.wide_bytes) + 2 * u.input * u.wide_bytes;
  out.workspace(std::max(ones, softmaxes), softmaxes + u.narrow * u.input * u.wide_bytes);
}

// Copies of sums, and some of their numbers.
void load_balance_workspace(const Host&, const NodeView& node, Infer& out) {
  const Units u(node);
  const auto labels = static_cast<uint64_t>(node.input(1).num_elements());
  const uint64_t sums = 3 * u.input * u.wide_bytes + labels * (1 + u.wide_bytes);
  out.workspace(sums, sums);
}

void gate_tokens_workspace(const Host&, const NodeView& node, Infer& out) {
  const Units u(node);
  const uint64_t gates = static_cast<uint64_t>(node.input(1).num_elements()) * u.wide_bytes;
  out.workspace(gates + (1 + u.narrow) * u.slab * u.wide_bytes, 3 * gates + (1 + u.narrow) * u.slab * u.wide_bytes);
}

void dispatch_workspace(const Host&, const NodeView& node, Infer& out) {
  const RowBytes bytes(node, node.output(0).num_elements() / std::max<int64_t>(1, node.input(1).num_elements()));
  const bool trains_weights = bytes.weighted && node.input(2).needs_grad();
  out.workspace(bytes.spread(), std::max(bytes.sum(), trains_weights ? bytes.grad_weights() : 0));
}

void combine_workspace(const Host&, const NodeView& node, Infer& out) {
  const RowBytes bytes(node, node.input(0).num_elements() / std::max<int64_t>(1, node.input(1).num_elements()));
  const bool trains_weights = bytes.weighted && node.input(2).needs_grad();
  out.workspace(bytes.sum(), std::max(bytes.spread(), trains_weights ? bytes.grad_weights() : 0));
}

// One product at a time, of which an expert may have all rows.
void grouped_linear_workspace(const Host& host, const NodeView& node, Infer& out) {
  const uint32_t dtype = node.input(0).dtype();
  const int64_t rows = node.input(1).num_elements(), out_dim = node.param(0).size(1), in_dim = node.param(0).size(2);
  const uint64_t weight = static_cast<uint64_t>(out_dim * in_dim);
  const uint64_t cast = node.param(0).dtype() == dtype ? 0 : weight * dtype_bytes(dtype);
  uint64_t gradient = 0;
  if (node.param(0).needs_grad()) {
    if (multiplies_into_wide(node.device_type(), dtype, wide(dtype)))
      gradient = weight * dtype_bytes(wide(dtype));  // the product, if it is added to an existing gradient
    else if (is_host_product(node, dtype))
      gradient = gemm_scratch_bytes(host, dtype, CHASSIS_DTYPE_F32, out_dim, in_dim, rows);
    else
      gradient = dtype == wide(dtype) ? 0 : static_cast<uint64_t>(rows * (in_dim + out_dim)) * dtype_bytes(wide(dtype));
  }
  out.workspace(cast, std::max(cast, gradient));
}

void clip_workspace(const Host&, const NodeView& node, Infer& out) { out.workspace(0, 2 * Units(node).input); }

void position_scale_workspace(const Host&, const NodeView& node, Infer& out) {
  const Units u(node);
  const auto tokens = static_cast<uint64_t>(node.input(1).num_elements());
  const uint64_t bytes = (tokens + 2 * u.narrow * u.slab) * u.wide_bytes;
  out.workspace(bytes, bytes);
}

void softcap_workspace(const Host&, const NodeView& node, Infer& out) {
  const Units u(node);
  out.workspace(u.input * u.wide_bytes, u.input * u.wide_bytes);
}

void embedding_workspace(const Host&, const NodeView& node, Infer& out) {
  const Units u(node);
  const int64_t vocab = node.param(0).size(0), columns = node.param(0).size(1);
  const uint64_t gradient = u.narrow * static_cast<uint64_t>(node.output(0).num_elements());
  out.workspace(0, (gradient + static_cast<uint64_t>(vocab * embedding_columns(vocab, columns))) * u.wide_bytes);
}

void rms_norm_workspace(const Host&, const NodeView& node, Infer& out) {
  const Units u(node);
  const uint64_t unit = node.op(0).has_attr("offset") ? 1 : 0;
  out.workspace((u.narrow + unit) * u.input * u.wide_bytes, (2 + 3 * u.narrow) * u.slab * u.wide_bytes);
}

void layer_norm_workspace(const Host&, const NodeView& node, Infer& out) {
  const Units u(node);
  out.workspace(2 * u.narrow * u.input * u.wide_bytes, 3 * u.narrow * u.input * u.wide_bytes);
}

void rope_workspace(const Host&, const NodeView& node, Infer& out) {
  const Units u(node);
  const uint64_t tokens =
      u.input / static_cast<uint64_t>(std::max<int64_t>(1, node.input(0).size(2) * node.input(0).size(3)));
  const uint64_t angles = 3 * tokens * node.op(0).attr_floats("inv_freq").size();
  const uint64_t bytes = (angles + 2 * u.narrow * u.slab) * u.wide_bytes;
  out.workspace(bytes, bytes);
}

void linear_workspace(const Host& host, const NodeView& node, Infer& out) {
  const Units u(node);
  if (!node.param(0).needs_grad()) return;  // no gradient of a weight
  if (multiplies_into_wide(node.device_type(), u.dtype, wide(u.dtype))) {
    // The product, if it is added to an existing gradient.
    out.workspace(0, static_cast<uint64_t>(node.param(0).num_elements()) * u.wide_bytes);
  } else if (u.narrow) {
    const int64_t out_dim = node.param(0).size(0), in_dim = node.param(0).size(1);
    const uint64_t output = static_cast<uint64_t>(node.output(0).num_elements());
    out.workspace(0, is_host_product(node, u.dtype) ? gemm_scratch_bytes(host, u.dtype, CHASSIS_DTYPE_F32, out_dim,
                                                                         in_dim, node.input(0).num_elements() / in_dim)
                                                    : (u.input + output) * u.wide_bytes);
  }
}

void linear_group_workspace(const Host& host, const NodeView& node, Infer& out) {
  branch_workspace(host, node, true, out);
}

void linear_add_workspace(const Host& host, const NodeView& node, Infer& out) {
  branch_workspace(host, node, false, out);
}

}  // namespace aten
