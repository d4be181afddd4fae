// The proof, and the messages of faults.
#include "host/state/cover.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "host/base/error.hpp"
#include "host/state/byte_range.hpp"

namespace chassis {

namespace {

using Cause = CoverFault::Cause;

std::string owner(int rank) { return rank < 0 ? "the model" : "rank " + std::to_string(rank); }

std::string title(const Descriptor& tensor) {
  std::string out =
      "tensor '" + tensor.fqn + "' " + std::string(dtype_name(tensor.dtype)) + " " + text(tensor.global_shape);
  if (tensor.is_padded()) out += " (padded to " + text(tensor.padded_shape) + " at run time)";
  return out + ": ";
}

// "0, 3-5 and 12 more"
std::string rank_list(const std::vector<int>& ranks) {
  constexpr size_t kShown = 6;
  std::string out;
  size_t i = 0;
  for (size_t shown = 0; i < ranks.size() && shown < kShown; ++shown) {
    size_t j = i;
    while (j + 1 < ranks.size() && ranks[j + 1] == ranks[j] + 1) ++j;
    if (!out.empty()) out += ", ";
    out += std::to_string(ranks[i]);
    if (j > i) out += "-" + std::to_string(ranks[j]);
    i = j + 1;
  }
  if (i < ranks.size()) out += " and " + std::to_string(ranks.size() - i) + " more";
  return out;
}

// Radix sort of keys below `limit`, three times as fast as std::sort for the millions of corners of a large plan.
void sort_keys(std::vector<uint64_t>& keys, std::vector<uint64_t>& spare, uint64_t limit) {
  constexpr int kBits = 11;
  constexpr size_t kBuckets = size_t{1} << kBits;
  if (keys.size() < kBuckets) return std::sort(keys.begin(), keys.end());
  spare.resize(keys.size());
  for (int shift = 0; shift < 64 && (limit >> shift) != 0; shift += kBits) {
    std::array<size_t, kBuckets> next{};
    for (uint64_t key : keys) ++next[(key >> shift) % kBuckets];
    size_t sum = 0;
    for (size_t& slot : next) sum += std::exchange(slot, sum);
    for (uint64_t key : keys) spare[next[(key >> shift) % kBuckets]++] = key;
    keys.swap(spare);
  }
}

void throw_first(const std::vector<CoverFault>& found, size_t num_tensors) {
  if (found.empty()) return;
  std::string message = found.front().message;
  if (found.size() > 1) message += " (and " + std::to_string(found.size() - 1) + " more tensors are wrong)";
  throw plugin_error(std::move(message)).with("tensors", std::to_string(num_tensors));
}

}  // namespace

Cover::Cover(int world_size) : world_size_(world_size) { CHASSIS_CHECK(world_size > 0, "a world without ranks"); }

Cover::Tensor& Cover::find_or_add(const Descriptor& tensor, int rank) {
  const auto [at, added] = by_name_.try_emplace(tensor.fqn, tensors_.size());
  if (added) {
    Tensor fresh;
    fresh.descriptor = tensor;
    fresh.declared_by = rank;
    fresh.declared.resize(static_cast<size_t>(world_size_));
    tensors_.push_back(std::move(fresh));
    return tensors_.back();
  }
  Tensor& known = tensors_[at->second];
  const bool same_shape = known.descriptor.global_shape == tensor.global_shape;
  const bool same_dtype = known.descriptor.dtype == tensor.dtype;
  if ((!same_shape || !same_dtype) && !known.early_fault) {
    CoverFault fault;
    fault.cause = same_shape ? Cause::kDtypeDisagreement : Cause::kShapeDisagreement;
    fault.fqn = tensor.fqn;
    fault.rank_a = known.declared_by;
    fault.rank_b = rank;
    const auto what = [&](const Descriptor& d) {
      return same_shape ? std::string(dtype_name(d.dtype)) : text(d.global_shape);
    };
    fault.message = "tensor '" + tensor.fqn + "': " + owner(known.declared_by) + " says its " +
                    (same_shape ? "dtype" : "shape") + " is " + what(known.descriptor) + ", " + owner(rank) + " says " +
                    what(tensor);
    if (!same_shape &&
        (tensor.global_shape == known.descriptor.padded_shape || tensor.padded_shape == known.descriptor.global_shape))
      fault.message += "; one of them is the padded run-time shape";
    known.early_fault = std::move(fault);
  }
  return known;
}

void Cover::expect(const Descriptor& tensor) { find_or_add(tensor, -1); }

void Cover::declare(const Descriptor& tensor, int rank, std::span<const Box> owned) {
  CHASSIS_CHECK(rank >= 0 && rank < world_size_, "rank outside of the world");
  Tensor& known = find_or_add(tensor, rank);
  known.declared[static_cast<size_t>(rank)] = true;
  for (const Box& box : owned) known.claims.push_back({rank, box});
  num_claims_ += static_cast<int64_t>(owned.size());
}

void Cover::declare(const Layout& layout, int rank) {
  const std::vector<Box> owned = layout.owned_boxes(rank);
  declare(layout.descriptor(), rank, owned);
}

std::vector<CoverFault> Cover::faults(size_t limit) const {
  std::vector<CoverFault> out;
  Scratch scratch;
  for (const Tensor& tensor : tensors_) {
    if (out.size() >= limit) break;
    if (std::optional<CoverFault> found = fault(tensor, scratch)) out.push_back(std::move(*found));
  }
  return out;
}

void Cover::prove() const { throw_first(faults(tensors_.size()), tensors_.size()); }

std::optional<CoverFault> Cover::bounds_fault(const Tensor& tensor, const Claim& claim) const {
  const Descriptor& d = tensor.descriptor;
  const auto make = [&](Cause cause, const std::string& why) {
    CoverFault out;
    out.cause = cause;
    out.fqn = d.fqn;
    out.where = out.box_a = claim.box;
    out.rank_a = claim.rank;
    out.message = title(d) + owner(claim.rank) + " declares " + text(claim.box) + why;
    return out;
  };
  if (claim.box.ndim() != d.global_shape.ndim())
    return make(Cause::kShapeDisagreement, ", a box with another number of dims");
  bool in_bounds = true, in_padding = true;
  for (int k = 0; k < claim.box.ndim(); ++k) {
    in_bounds &=
        claim.box.begin[k] >= 0 && claim.box.begin[k] <= claim.box.end[k] && claim.box.end[k] <= d.global_shape[k];
    in_padding &= claim.box.begin[k] >= 0 && claim.box.end[k] <= d.padded_shape[k];
  }
  if (!in_bounds && in_padding && d.is_padded())
    return make(Cause::kPadding, ", which reaches into the padding; only logical elements are owned");
  if (!in_bounds) return make(Cause::kOutOfBounds, ", which is out of bounds");
  return std::nullopt;
}

// The indicator functions of the claims add up to that of the whole tensor if and only if their mixed differences
// agree, that is if the signed corners of all boxes cancel to those of the whole. The first corner in row-major order
// that does not cancel is the first wrong element, because the error there is the sum of all differences at or before
// it.
std::optional<CoverFault> Cover::fault(const Tensor& tensor, Scratch& scratch) const {
  if (tensor.early_fault) return tensor.early_fault;
  const Descriptor& d = tensor.descriptor;
  const Shape& shape = d.global_shape;
  const Box whole = Box::whole(shape);

  const int64_t block = d.block_elements();
  std::array<bool, Shape::kMaxDims> divided{};
  for (const Claim& claim : tensor.claims) {
    if (auto bad = bounds_fault(tensor, claim)) return bad;
    if (claim.box.empty()) continue;
    for (int k = 0; k < shape.ndim(); ++k)
      divided[static_cast<size_t>(k)] |= claim.box.begin[k] != 0 || claim.box.end[k] != shape[k];
  }

  // Encodes positions 0…size in the divided dims as one number.
  std::array<uint64_t, Shape::kMaxDims> weights{};
  uint64_t weight = 1;
  for (int k = shape.ndim() - 1; k >= 0; --k) {
    if (!divided[static_cast<size_t>(k)]) continue;
    weights[static_cast<size_t>(k)] = weight;
    CHASSIS_CHECK(!__builtin_mul_overflow(weight, static_cast<uint64_t>(shape[k]) + 1, &weight), "tensor too large");
  }

  auto& rises = scratch.rises;
  auto& falls = scratch.falls;
  rises.clear();
  falls.clear();
  const auto add_corners = [&](const Box& box, bool invert) {
    uint64_t keys[1 << Shape::kMaxDims];
    bool odd[1 << Shape::kMaxDims];
    size_t n = 1;
    keys[0] = 0;
    odd[0] = invert;
    for (int k = 0; k < shape.ndim(); ++k) {
      const uint64_t w = weights[static_cast<size_t>(k)];
      if (w == 0) continue;
      for (size_t i = 0; i < n; ++i) {
        keys[n + i] = keys[i] + w * static_cast<uint64_t>(box.end[k]);
        odd[n + i] = !odd[i];
        keys[i] += w * static_cast<uint64_t>(box.begin[k]);
      }
      n *= 2;
    }
    for (size_t i = 0; i < n; ++i) (odd[i] ? falls : rises).push_back(keys[i]);
  };
  for (const Claim& claim : tensor.claims)
    if (!claim.box.empty()) add_corners(claim.box, false);
  if (!whole.empty()) add_corners(whole, true);
  sort_keys(rises, scratch.spare, weight);
  sort_keys(falls, scratch.spare, weight);

  const auto differ = std::mismatch(rises.begin(), rises.end(), falls.begin(), falls.end());
  if (differ.first != rises.end() || differ.second != falls.end()) {
    const bool twice = differ.second == falls.end() || (differ.first != rises.end() && *differ.first < *differ.second);
    uint64_t key = twice ? *differ.first : *differ.second;
    Shape element = Shape::filled(shape.ndim(), 0);
    for (int k = 0; k < shape.ndim(); ++k)
      if (const uint64_t w = weights[static_cast<size_t>(k)]; w != 0) {
        element[k] = static_cast<int64_t>(key / w);
        key %= w;
      }
    return twice ? overlap_fault(tensor, element) : gap_fault(tensor, element);
  }

  if (block > 1) return cut_fault(tensor, block);
  return std::nullopt;
}

// Boxes of one flat range may meet within a block. Only the beginning and the end of the joined range must be legal.
std::optional<CoverFault> Cover::cut_fault(const Tensor& tensor, int64_t block) const {
  const Descriptor& d = tensor.descriptor;
  const int64_t total = numel(d.global_shape);
  struct Run {
    int rank;
    int64_t begin, end;
    const Claim* claim;
  };
  std::vector<Run> runs;  // the boxes that do not themselves begin and end at blocks
  const Claim* wrong = nullptr;
  for (const Claim& claim : tensor.claims) {
    const ByteRanges ranges(claim.box, d.global_shape, 1);
    if (ranges.cut_at_multiples_of(block, total)) continue;
    if (!ranges.contiguous() && wrong == nullptr) wrong = &claim;
    const ByteRange span = ranges.span();
    runs.push_back({claim.rank, span.offset, span.offset + span.length, &claim});
  }
  std::sort(runs.begin(), runs.end(),
            [](const Run& a, const Run& b) { return std::pair(a.rank, a.begin) < std::pair(b.rank, b.begin); });
  for (size_t i = 0; i < runs.size() && wrong == nullptr;) {
    size_t j = i;
    while (j + 1 < runs.size() && runs[j + 1].rank == runs[i].rank && runs[j + 1].begin == runs[j].end) ++j;
    if (runs[i].begin % block != 0 || (runs[j].end % block != 0 && runs[j].end != total))
      wrong = runs[runs[i].begin % block != 0 ? i : j].claim;
    i = j + 1;
  }
  if (wrong == nullptr) return std::nullopt;

  CoverFault out;
  out.cause = Cause::kIllegalCut;
  out.fqn = d.fqn;
  out.where = out.box_a = wrong->box;
  out.rank_a = wrong->rank;
  out.message = title(d) + owner(wrong->rank) + " declares " + text(wrong->box) +
                ", which is not cut at multiples of " + std::to_string(block) + " row-major elements";
  return out;
}

CoverFault Cover::overlap_fault(const Tensor& tensor, const Shape& element) const {
  const Claim* first = nullptr;
  const Claim* second = nullptr;
  for (const Claim& claim : tensor.claims)
    if (claim.box.contains(element)) {
      if (first != nullptr) {
        second = &claim;
        break;
      }
      first = &claim;
    }
  CHASSIS_CHECK(second != nullptr, "an overlap has two owners");

  CoverFault out;
  out.fqn = tensor.descriptor.fqn;
  out.rank_a = first->rank;
  out.rank_b = second->rank;
  out.box_a = first->box;
  out.box_b = second->box;
  out.where = intersection(first->box, second->box);
  out.cause = first->box == second->box ? Cause::kDuplicate : Cause::kOverlap;
  out.message = title(tensor.descriptor) + "elements " + text(out.where) + " are owned twice: " + owner(out.rank_a) +
                " declares " + text(out.box_a) + ", " + owner(out.rank_b) + " declares " + text(out.box_b);
  if (out.rank_a == out.rank_b)
    out.message += " (declared twice by the same rank)";
  else if (out.cause == Cause::kDuplicate)
    out.message += " (duplicate: replicas without one owner?)";
  else if (tensor.descriptor.is_padded())
    out.message += " (padding: was one of them cut from the unpadded shape?)";
  else
    out.message += " (the ranks cut by different rules)";
  return out;
}

CoverFault Cover::gap_fault(const Tensor& tensor, const Shape& element) const {
  const Descriptor& d = tensor.descriptor;
  CoverFault out;
  out.fqn = d.fqn;

  // Grows the gap from the element to the next claim, last dim first.
  Box gap{element, element};
  for (int k = 0; k < element.ndim(); ++k) ++gap.end[k];
  for (int k = element.ndim() - 1; k >= 0; --k) {
    gap.end[k] = d.global_shape[k];
    for (const Claim& claim : tensor.claims)
      if (claim.box.begin[k] > element[k] && !intersection(claim.box, gap).empty()) gap.end[k] = claim.box.begin[k];
  }
  out.where = gap;

  // Finds the claims that end where the gap begins, and that begin where it ends.
  int64_t declared = 0;
  for (const Claim& claim : tensor.claims) {
    declared += numel(claim.box);
    for (int k = 0; k < element.ndim(); ++k) {
      Shape before = element, after = element;
      before[k] = gap.begin[k] - 1;
      after[k] = gap.end[k];
      if (out.rank_a < 0 && claim.box.contains(before)) out.rank_a = claim.rank, out.box_a = claim.box;
      if (out.rank_b < 0 && claim.box.contains(after)) out.rank_b = claim.rank, out.box_b = claim.box;
    }
  }

  std::vector<int> undeclared;
  for (int rank = 0; rank < world_size_; ++rank)
    if (!tensor.declared[static_cast<size_t>(rank)]) undeclared.push_back(rank);
  const int64_t total = numel(d.global_shape);
  const bool one_of_many = declared > 0 && total % declared == 0;
  out.cause = undeclared.empty() && !one_of_many && declared > 0 ? Cause::kGap : Cause::kMissingRankState;

  out.message = title(d) + "elements " + text(gap) + " are owned by no rank";
  if (out.rank_a >= 0) out.message += "; before them " + owner(out.rank_a) + " declares " + text(out.box_a);
  if (out.rank_b >= 0) out.message += "; after them " + owner(out.rank_b) + " declares " + text(out.box_b);
  if (declared == 0)
    out.message += "; no element is declared";
  else if (one_of_many)
    out.message += "; exactly 1/" + std::to_string(total / declared) + " of it is declared";
  else
    out.message += "; " + std::to_string(declared) + " of " + std::to_string(total) + " elements are declared";
  if (!undeclared.empty())
    out.message += " (missing rank state: nothing was declared by rank" +
                   std::string(undeclared.size() > 1 ? "s " : " ") + rank_list(undeclared) + ")";
  else if (one_of_many)
    out.message += " (missing rank state: one shard of " + std::to_string(total / declared) + "?)";
  else if (declared > 0 && d.is_padded())
    out.message += " (padding: was the shard cut from the unpadded shape?)";
  return out;
}

void prove_cover(std::span<const Descriptor> tensors, const MeshShape& mesh, const Prover& prover) {
  std::vector<std::string_view> names;  // in order of declaration
  std::unordered_map<std::string_view, std::vector<const Descriptor*>> by_name;
  for (const Descriptor& tensor : tensors) {
    std::vector<const Descriptor*>& same = by_name[tensor.fqn];
    if (same.empty()) names.push_back(tensor.fqn);
    same.push_back(&tensor);
  }
  std::unordered_set<std::string> proven;  // keys of layouts
  std::vector<CoverFault> found;
  for (size_t i = static_cast<size_t>(prover.index); i < names.size(); i += static_cast<size_t>(prover.count)) {
    const std::vector<const Descriptor*>& same = by_name.at(names[i]);
    std::vector<Layout> layouts;
    for (const Descriptor* tensor : same) layouts.emplace_back(*tensor, mesh);
    const bool is_alone = layouts.size() == 1;
    if (is_alone && proven.contains(layouts.front().key())) continue;
    Cover cover(mesh.world_size());
    for (const Layout& layout : layouts)
      for (int rank = 0; rank < mesh.world_size(); ++rank) cover.declare(layout, rank);
    std::vector<CoverFault> faults = cover.faults();
    if (!faults.empty())
      found.push_back(std::move(faults.front()));
    else if (is_alone)
      proven.insert(layouts.front().key());
  }
  throw_first(found, names.size());
}

void prove_cover(std::span<const Layout> layouts) {
  std::vector<Descriptor> tensors;
  for (const Layout& layout : layouts) {
    CHASSIS_CHECK(layout.mesh() == layouts.front().mesh(), "layouts of different meshes");
    tensors.push_back(layout.descriptor());
  }
  if (!tensors.empty()) prove_cover(tensors, layouts.front().mesh());
}

}  // namespace chassis
