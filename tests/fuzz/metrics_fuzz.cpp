// The input is the metrics.jsonl of a resumed run: scanning it does not fail, and keeps whole lines, none of which
// would be dropped by the next scan.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "host/train/metrics_file.hpp"

namespace {

chassis::MetricsScan scan(const uint8_t* data, size_t num_bytes, size_t block, int64_t last_step) {
  const auto read = [&](void* out, size_t wanted, uint64_t offset) {
    const size_t got = std::min({wanted, block, num_bytes - std::min<size_t>(num_bytes, offset)});
    if (got > 0) std::memcpy(out, data + offset, got);
    return got;
  };
  return chassis::scan_metrics(read, last_step);
}

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const size_t block = 1 + data[0];
  const int64_t last_step = data[1];
  data += 2;
  size -= 2;
  const chassis::MetricsScan whole = scan(data, size, size + 1, last_step), pieces = scan(data, size, block, last_step);
  require(whole.kept_bytes == pieces.kept_bytes && whole.num_kept == pieces.num_kept);
  require(whole.num_dropped == pieces.num_dropped && whole.drops_cut_short == pieces.drops_cut_short);
  require(whole.kept_bytes <= size);
  require(whole.kept_bytes == 0 || whole.kept_bytes == size || data[whole.kept_bytes - 1] == '\n');
  require(whole.kept_bytes == size || whole.num_dropped > 0 || whole.drops_cut_short);
  const chassis::MetricsScan again = scan(data, whole.kept_bytes, block, last_step);
  require(again.kept_bytes == whole.kept_bytes && again.num_dropped == 0 && !again.drops_cut_short &&
          again.num_kept == whole.num_kept);
  return 0;
}
