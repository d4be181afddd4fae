// Packs one window at a time, and keeps the last one.
#include "host/data/best_fit.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#include "host/base/error.hpp"
#include "host/data/permutation.hpp"
#include "host/data/row_options.hpp"

namespace chassis {
namespace {

// Streams of the permutations; the index of the set is added to them.
constexpr uint64_t kDocumentOrder = uint64_t{1} << 32, kWindowOrder = uint64_t{2} << 32, kRowOrder = uint64_t{3} << 32;

}  // namespace

PackedRows pack_best_fit(std::span<const uint64_t> lengths, uint64_t seq_len) {
  std::vector<uint32_t> order(lengths.size()), row_of(lengths.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return lengths[a] > lengths[b]; });
  std::map<uint64_t, std::vector<uint32_t>> rows_with_room;
  uint32_t num_rows = 0;
  for (const uint32_t document : order) {
    const uint64_t length = lengths[document];
    CHASSIS_CHECK(length <= seq_len, "a document that is longer than a row");
    uint64_t room = seq_len;
    if (const auto fit = rows_with_room.lower_bound(length); fit != rows_with_room.end()) {
      room = fit->first;
      row_of[document] = fit->second.back();
      fit->second.pop_back();
      if (fit->second.empty()) rows_with_room.erase(fit);
    } else {
      row_of[document] = num_rows++;
    }
    if (room > length) rows_with_room[room - length].push_back(row_of[document]);
  }
  PackedRows packed;
  packed.begin.assign(num_rows + 1, 0);
  for (const uint32_t row : row_of) ++packed.begin[row + 1];
  std::partial_sum(packed.begin.begin(), packed.begin.end(), packed.begin.begin());
  packed.documents.resize(lengths.size());
  std::vector<uint32_t> next(packed.begin.begin(), packed.begin.end() - 1);
  for (uint32_t document = 0; document < lengths.size(); ++document) {
    packed.documents[next[row_of[document]]++] = document;
  }
  return packed;
}

struct BestFitRows::Window {
  uint64_t number = 0;
  std::vector<DocumentSpan> documents;
  PackedRows rows;
  std::vector<uint32_t> in_order;  // rows, sorted by their first document
  uint64_t num_dropped = 0, num_tokens = 0;
};

struct BestFitRows::Place {
  std::mutex mutex;
  std::optional<uint64_t> epoch;
  std::vector<uint64_t> first_row;  // per window, in the order of this epoch; the last entry is the end
  std::optional<Window> window;
};

BestFitRows::BestFitRows(const TokenStore& store, const RowOptions& options, const std::function<void()>& poll)
    : seq_len_(static_cast<uint64_t>(options.seq_len)),
      seed_(options.seed),
      stream_(options.stream),
      shuffle_(options.shuffle),
      drops_(drops_long_documents(options.overflow)),
      rows_of_window_((store.num_documents() + kPackingWindow - 1) / kPackingWindow),
      place_(std::make_unique<Place>()) {
  for (uint64_t w = 0; w < num_windows(); ++w) {
    if (poll) poll();
    const Window window = pack(store, w);
    rows_of_window_[w] = static_cast<uint32_t>(window.rows.size());
    num_rows_ += window.rows.size();
    num_tokens_ += window.num_tokens;
  }
}

BestFitRows::BestFitRows(BestFitRows&&) noexcept = default;
BestFitRows::~BestFitRows() = default;

BestFitRows::Window BestFitRows::pack(const TokenStore& store, uint64_t number) const {
  const uint64_t num_documents = store.num_documents();
  // Windows of equal size: a small last one would have a large share of rows that are not full.
  const uint64_t begin = num_documents * number / num_windows(), end = num_documents * (number + 1) / num_windows();
  Window window;
  window.number = number;
  window.documents.resize(end - begin);
  if (shuffle_) {
    const Permutation order(num_documents, seed_, stream_ + kDocumentOrder, 0);
    for (uint64_t i = begin; i < end; ++i) window.documents[i - begin] = store.document(order(i));
  } else {
    store.read_documents(begin, window.documents);
  }
  if (drops_) {
    window.num_dropped = std::erase_if(window.documents, [&](DocumentSpan d) { return d.length > seq_len_; });
  }
  std::vector<uint64_t> lengths;
  lengths.reserve(window.documents.size());
  for (const DocumentSpan document : window.documents) {
    lengths.push_back(std::min(document.length, seq_len_));
    window.num_tokens += lengths.back();
  }
  window.rows = pack_best_fit(lengths, seq_len_);
  window.in_order.resize(window.rows.size());
  std::iota(window.in_order.begin(), window.in_order.end(), 0u);
  std::sort(window.in_order.begin(), window.in_order.end(),
            [&](uint32_t a, uint32_t b) { return window.rows.row(a).front() < window.rows.row(b).front(); });
  return window;
}

BestFitRows::Row BestFitRows::row(const TokenStore& store, uint64_t epoch, uint64_t index) const {
  CHASSIS_CHECK(index < num_rows_, "row number out of range");
  const std::lock_guard lock(place_->mutex);
  const auto window_at = [&](uint64_t position) {
    return shuffle_ ? Permutation(num_windows(), seed_, stream_ + kWindowOrder, epoch)(position) : position;
  };
  if (place_->epoch != epoch) {
    place_->epoch = epoch;
    place_->first_row.assign(1, 0);
    for (uint64_t i = 0; i < num_windows(); ++i)
      place_->first_row.push_back(place_->first_row.back() + rows_of_window_[window_at(i)]);
  }
  const auto after = std::upper_bound(place_->first_row.begin(), place_->first_row.end(), index);
  const auto position = static_cast<uint64_t>(after - place_->first_row.begin()) - 1;
  const uint64_t number = window_at(position);
  if (!place_->window || place_->window->number != number) place_->window = pack(store, number);
  const Window& window = *place_->window;
  const uint64_t in_window = index - place_->first_row[position];
  CHASSIS_CHECK(rows_of_window_[number] == window.rows.size(), "the documents have changed");
  const uint64_t in_order =
      shuffle_ ? Permutation(window.rows.size(), seed_, stream_ + kRowOrder, epoch * num_windows() + number)(in_window)
               : in_window;
  Row row;
  for (const uint32_t document : window.rows.row(window.in_order[in_order]))
    row.documents.push_back(window.documents[document]);
  if (in_window == 0) row.num_dropped = window.num_dropped;
  return row;
}

}  // namespace chassis
