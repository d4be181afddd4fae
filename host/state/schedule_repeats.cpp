// Finds windows in which the entries at i and at i + period are the same except for the number of the micro-batch.
//
// A window with all types of entries is a steady state: whole periods of it can be left out. If windows together have
// every type once, as the forwards and the backwards of GPipe do, the same number of periods can be left out of each.
#include "host/state/schedule_repeats.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <utility>

namespace chassis {
namespace {

// Repeats that stay: two in which the state of a rank may still change (what the first one sends may arrive in the
// second), one that stands for others, and one that shows whether the third one can.
constexpr int64_t kBefore = 2, kKept = kBefore + 2;

struct Window {
  size_t begin = 0;
  size_t period = 0;
  int64_t count = 0;     // periods
  int64_t left_out = 0;  // periods

  size_t end() const { return begin + period * static_cast<size_t>(count); }
  bool contains(size_t entry) const { return entry >= begin && entry < end(); }
};

class Shortener {
 public:
  Shortener(const Schedule& schedule, int rank)
      : list_(schedule.ranks[static_cast<size_t>(rank)]), is_last_(last_of_chunk(list_)) {
    std::map<std::pair<Work::Kind, int>, size_t> types;
    for (const Work& work : list_)
      types_.push_back(types.emplace(std::pair(work.kind, work.chunk), types.size()).first->second);
    num_types_ = types.size();
  }

  ShortList run() {
    if (is_complete()) {
      find_steady_state();
      order_ = common_order(types_, list_);
      if (!order_.empty()) leave_out_together();
    }
    ShortList out{shortened(), {}};
    size_t num_left_out = 0;
    for (const Window& window : windows_) {
      out.repeats.push_back({window.begin + kBefore * window.period - num_left_out, window.period, window.left_out});
      num_left_out += window.period * static_cast<size_t>(window.left_out);
    }
    return out;
  }

 private:
  // True if every type has all micro-batches in order.
  bool is_complete() const {
    std::vector<int> next(num_types_);
    for (size_t i = 0; i < list_.size(); ++i)
      if (list_[i].microbatch != next[types_[i]]++) return false;
    return num_types_ > 0 && std::count(next.begin(), next.end(), next[0]) == static_cast<std::ptrdiff_t>(num_types_);
  }

  // The order of types in every micro-batch; empty if it differs between them.
  std::vector<size_t> common_order(const std::vector<size_t>& types, const std::vector<Work>& list) const {
    std::vector<size_t> order, num_seen(list.size() / num_types_);
    for (size_t i = 0; i < list.size(); ++i) {
      const size_t place = num_seen[static_cast<size_t>(list[i].microbatch)]++;
      if (place == order.size()) order.push_back(types[i]);
      if (order[place] != types[i]) return {};
    }
    return order;
  }

  bool repeats(size_t entry, size_t period, int64_t shift) const {
    const size_t again = entry + period;
    return again < list_.size() && types_[entry] == types_[again] && !is_last_[entry] && !is_last_[again] &&
           list_[again].microbatch == list_[entry].microbatch + shift;
  }
  // The number of entries of each type in a period.
  std::vector<int64_t> counts(const Window& window) const {
    std::vector<int64_t> out(num_types_);
    for (size_t i = 0; i < window.period; ++i) ++out[types_[window.begin + i]];
    return out;
  }

  void find_steady_state() {
    const size_t size = list_.size();
    for (int64_t shift = 1; num_types_ * static_cast<size_t>(shift) * (kKept + 1) <= size; ++shift)
      for (const size_t inside : {size / 2, size / 4, size / 4 * 3}) {
        const size_t period = num_types_ * static_cast<size_t>(shift);
        if (!repeats(inside, period, shift)) continue;
        size_t begin = inside, end = inside;
        while (begin > 0 && repeats(begin - 1, period, shift)) --begin;
        while (repeats(end, period, shift)) ++end;
        const Window window{begin, period, static_cast<int64_t>((end - begin) / period) + 1};
        if (window.count <= kKept || counts(window) != std::vector(num_types_, shift)) continue;
        windows_ = {window};
        windows_[0].left_out = window.count - kKept;
        return;
      }
  }

  // The window of periods of one micro-batch that begins at an entry and ends before `limit`; empty if there is none.
  Window short_window(size_t begin, size_t limit) const {
    for (size_t period = 1; period <= num_types_; ++period) {
      size_t end = begin;
      while (end + period < limit && repeats(end, period, 1)) ++end;
      const auto count = static_cast<int64_t>((end - begin) / period) + 1;
      if (end > begin && count > kKept) return {begin, period, count};
    }
    return {};
  }
  // All short windows outside the steady state.
  std::vector<Window> short_windows() const {
    std::vector<Window> out;
    const Window steady = windows_.empty() ? Window{list_.size()} : windows_[0];
    for (size_t i = 0; i < list_.size(); ++i) {
      if (steady.contains(i)) i = steady.end();
      const Window window = short_window(i, i < steady.begin ? steady.begin : list_.size());
      if (window.count == 0) continue;
      out.push_back(window);
      i = window.end() - 1;
    }
    return out;
  }

  // Leaves the same number of periods out of each of several windows that together have every type once, if the
  // micro-batches that stay still have their entries in the same order.
  void leave_out_together() {
    std::vector<Window> all = short_windows();
    for (size_t first = 0; first < all.size(); ++first) {
      std::vector<int64_t> total(num_types_);
      std::vector<size_t> chosen;
      int64_t least = INT64_MAX;
      for (size_t w = first; w < all.size(); ++w) {
        std::vector<int64_t> sum = counts(all[w]);
        std::transform(sum.begin(), sum.end(), total.begin(), sum.begin(), std::plus<>());
        if (all[w].left_out > 0 || *std::max_element(sum.begin(), sum.end()) > 1) continue;
        total = std::move(sum);
        chosen.push_back(w);
        least = std::min(least, all[w].count - kKept);
      }
      if (total != std::vector<int64_t>(num_types_, 1)) continue;
      const std::vector<Window> before = windows_;
      for (const size_t w : chosen) all[w].left_out = least, windows_.push_back(all[w]);
      std::sort(windows_.begin(), windows_.end(), [](const Window& a, const Window& b) { return a.begin < b.begin; });
      if (keeps_order()) continue;
      windows_ = before;
      for (const size_t w : chosen) all[w].left_out = 0;
    }
  }

  bool keeps_order() const {
    std::vector<size_t> types;
    const std::vector<Work> list = shortened(&types);
    return common_order(types, list) == order_;
  }

  // Leaves out the periods after the one that stands for others.
  std::vector<Work> shortened(std::vector<size_t>* types = nullptr) const {
    std::vector<Work> out;
    std::vector<int> next(num_types_);
    auto window = windows_.begin();
    for (size_t i = 0; i < list_.size(); ++i) {
      if (window != windows_.end() && i == window->begin + (kBefore + 1) * window->period) {
        i += window->period * static_cast<size_t>(window->left_out);
        ++window;
      }
      out.push_back({list_[i].kind, list_[i].chunk, windows_.empty() ? list_[i].microbatch : next[types_[i]]++});
      if (types != nullptr) types->push_back(types_[i]);
    }
    return out;
  }

  const std::vector<Work>& list_;
  const std::vector<uint8_t> is_last_;
  std::vector<size_t> types_;  // by entry, one number for each kind and chunk
  size_t num_types_ = 0;
  std::vector<size_t> order_;
  std::vector<Window> windows_;  // those from which periods are left out, ascending
};

}  // namespace

ShortList without_repeats(const Schedule& schedule, int rank) { return Shortener(schedule, rank).run(); }

}  // namespace chassis
