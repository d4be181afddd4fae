// Greedy choice among classes of items that have equal bytes on every rank.
#include "host/state/move_order.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <string_view>
#include <tuple>
#include <utility>

#include "host/base/error.hpp"

namespace chassis {
namespace {

using Bytes = std::vector<int64_t>;  // by rank
__extension__ using Squares = __int128;

int64_t local_bytes(const Layout& layout, int rank) {
  return rank < layout.world_size() && layout.holds(rank) ? layout.local_bytes(rank) : 0;
}

// True if every rank has the same elements in the same places of tensors of the same shape. Owners may differ.
bool has_equal_places(const Layout& a, const Layout& b) {
  if (a.world_size() != b.world_size() || a.descriptor().dtype != b.descriptor().dtype) return false;
  for (int rank = 0; rank < a.world_size(); ++rank) {
    if (a.holds(rank) != b.holds(rank) || a.local_shape(rank) != b.local_shape(rank)) return false;
    const std::vector<Piece> in_a = a.pieces(rank), in_b = b.pieces(rank);
    const auto is_equal = [](const Piece& x, const Piece& y) { return x.box == y.box && x.local == y.local; };
    if (!std::equal(in_a.begin(), in_a.end(), in_b.begin(), in_b.end(), is_equal)) return false;
  }
  return true;
}

size_t num_ranks(std::span<const MovedItem> items) {
  size_t out = 0;
  for (const MovedItem& item : items) out = std::max({out, item.before.size(), item.after.size()});
  return out;
}

void add(Bytes& sum, const Bytes& bytes, int64_t sign = 1) {
  for (size_t r = 0; r < bytes.size(); ++r) sum[r] += sign * bytes[r];
}

Bytes sum_of(std::span<const MovedItem> items, Bytes MovedItem::*side) {
  Bytes out(num_ranks(items));
  for (const MovedItem& item : items) add(out, item.*side);
  return out;
}

// The items that have the same bytes on every rank, the last name first.
struct ItemClass {
  Bytes after, change;
  std::vector<uint32_t> ranks;  // those that have any bytes of it, before or after
  std::vector<uint32_t> items;
};

// The bytes that ranks hold while items move.
class Residents {
 public:
  explicit Residents(Bytes bytes) : bytes_(std::move(bytes)), by_fullness_(bytes_.size()) {
    std::iota(by_fullness_.begin(), by_fullness_.end(), 0);
    sort();
  }
  const Bytes& bytes() const { return bytes_; }
  void add(const Bytes& change) {
    chassis::add(bytes_, change);
    sort();
  }
  // The bytes of the fullest rank with those of an item added; or, if they are more than `limit`, any value above it.
  int64_t fullest_with(const ItemClass& item, Bytes ItemClass::*added, int64_t limit) const {
    int64_t out = std::numeric_limits<int64_t>::min();
    for (size_t k = 0; k < item.ranks.size() && out <= limit; ++k)
      out = std::max(out, bytes_[item.ranks[k]] + (item.*added)[item.ranks[k]]);
    const auto has_none = [&](uint32_t r) { return item.after[r] == 0 && item.change[r] == 0; };
    const auto other = std::find_if(by_fullness_.begin(), by_fullness_.end(), has_none);
    return other == by_fullness_.end() ? out : std::max(out, bytes_[*other]);
  }
  // By how much the sum of squares grows. Exact, since all ranks must choose the same item.
  Squares growth_of_squares(const ItemClass& item) const {
    Squares out = 0;
    for (const uint32_t r : item.ranks) out += Squares{item.change[r]} * (2 * bytes_[r] + item.change[r]);
    return out;
  }

 private:
  void sort() {
    std::sort(by_fullness_.begin(), by_fullness_.end(), [&](uint32_t a, uint32_t b) { return bytes_[a] > bytes_[b]; });
  }
  Bytes bytes_;
  std::vector<uint32_t> by_fullness_;
};

std::vector<ItemClass> classes_of(std::span<const MovedItem> items) {
  const size_t n = num_ranks(items);
  std::map<std::pair<Bytes, Bytes>, std::vector<uint32_t>> by_bytes;
  for (uint32_t i = 0; i < items.size(); ++i) {
    if (items[i].in_place) continue;
    Bytes before = items[i].before, after = items[i].after;
    before.resize(n);
    after.resize(n);
    by_bytes[{std::move(before), std::move(after)}].push_back(i);
  }
  std::vector<ItemClass> out;
  for (auto& [bytes, members] : by_bytes) {
    std::sort(members.begin(), members.end(), [&](uint32_t a, uint32_t b) { return items[a].name > items[b].name; });
    for (size_t k = 1; k < members.size(); ++k)
      CHASSIS_CHECK(items[members[k]].name != items[members[k - 1]].name,
                    "two items that move have the name '" + items[members[k]].name + "'");
    Bytes change = bytes.second;
    add(change, bytes.first, -1);
    std::vector<uint32_t> ranks;
    for (uint32_t r = 0; r < n; ++r)
      if (bytes.first[r] != 0 || bytes.second[r] != 0) ranks.push_back(r);
    out.push_back({bytes.second, std::move(change), std::move(ranks), std::move(members)});
  }
  return out;
}

}  // namespace

std::vector<MovedItem> moved_items(std::span<const ReshardTensor> tensors) {
  std::vector<MovedItem> out;
  for (const ReshardTensor& tensor : tensors) {
    MovedItem item;
    item.name = tensor.to.descriptor().fqn;
    for (int r = 0; r < tensor.from.world_size(); ++r) item.before.push_back(local_bytes(tensor.from, r));
    for (int r = 0; r < tensor.to.world_size(); ++r) item.after.push_back(local_bytes(tensor.to, r));
    item.in_place = has_equal_places(tensor.from, tensor.to);
    out.push_back(std::move(item));
  }
  return out;
}

MoveOrder order_moves(std::span<const MovedItem> items) {
  MoveOrder out;
  Residents residents(sum_of(items, &MovedItem::before));
  const Bytes at_end = sum_of(items, &MovedItem::after);
  out.peak = residents.bytes();
  for (size_t r = 0; r < at_end.size(); ++r) out.floor.push_back(std::max(out.peak[r], at_end[r]));

  std::vector<ItemClass> classes = classes_of(items);
  while (!classes.empty()) {
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    size_t best = 0;
    std::tuple<int64_t, Squares, int64_t, std::string_view> least(kMost, 0, 0, {});
    for (size_t c = 0; c < classes.size(); ++c) {
      const int64_t fullest = residents.fullest_with(classes[c], &ItemClass::change, std::get<0>(least));
      if (fullest > std::get<0>(least)) continue;
      const std::tuple key(fullest, residents.growth_of_squares(classes[c]),
                           residents.fullest_with(classes[c], &ItemClass::after, kMost),
                           std::string_view(items[classes[c].items.back()].name));
      if (key < least) best = c, least = key;
    }
    ItemClass& chosen = classes[best];
    for (size_t r = 0; r < out.peak.size(); ++r)
      out.peak[r] = std::max(out.peak[r], residents.bytes()[r] + chosen.after[r]);
    residents.add(chosen.change);
    out.order.push_back(chosen.items.back());
    chosen.items.pop_back();
    if (chosen.items.empty()) {
      if (best + 1 < classes.size()) chosen = std::move(classes.back());
      classes.pop_back();
    }
  }
  return out;
}

MoveGroups group_moves(std::span<const MovedItem> items, const MoveOrder& order, int64_t room_bytes) {
  MoveGroups out;
  Bytes held = sum_of(items, &MovedItem::before);  // all items of the last group exist twice
  for (const uint32_t i : order.order) {
    add(held, items[i].after);
    bool fits = !out.empty();
    for (size_t r = 0; r < held.size() && fits; ++r) fits = held[r] <= order.peak[r] + room_bytes;
    if (!fits) {
      if (!out.empty())
        for (const uint32_t moved : out.back()) add(held, items[moved].before, -1);
      out.emplace_back();
    }
    out.back().push_back(i);
  }
  return out;
}

std::vector<int64_t> swap_memory(std::span<const MovedItem> items, const MoveGroups& groups) {
  Bytes held = sum_of(items, &MovedItem::before), peak = held;
  for (const auto& group : groups) {
    for (const uint32_t i : group) add(held, items[i].after);
    for (size_t r = 0; r < peak.size(); ++r) peak[r] = std::max(peak[r], held[r]);
    for (const uint32_t i : group) add(held, items[i].before, -1);
  }
  return peak;
}

std::vector<int64_t> swap_memory(std::span<const MovedItem> items, int64_t room_bytes) {
  return swap_memory(items, group_moves(items, order_moves(items), room_bytes));
}

}  // namespace chassis
