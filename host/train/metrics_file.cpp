// Scans metrics.jsonl line by line, and truncates or copies it.
#include "host/train/metrics_file.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <vector>

#include "host/base/error.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"

namespace chassis {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 16;
constexpr size_t kMaxLineBytes = size_t{1} << 20;  // a longer line is foreign
constexpr std::string_view kOwnStart = "{\"step\":";

// The step of an own line; nothing for a foreign line.
std::optional<int64_t> own_step(std::string_view line) {
  const Json json = Json::parse(line.begin(), line.end(), nullptr, false);
  if (!json.is_object()) return std::nullopt;
  const auto step = json.find("step");
  if (step == json.end() || !step->is_number_integer()) return std::nullopt;
  if (step->is_number_unsigned() && step->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
  const bool of_step = json.contains("loss") && json.contains("grad_norm") && json.contains("trained_tokens");
  const bool of_evaluation = json.contains("eval") && (json.contains("eval_loss") || json.contains("score"));
  const bool of_sample = json.contains("prompt") && json.contains("answer");
  if (!of_step && !of_evaluation && !of_sample) return std::nullopt;
  return step->get<int64_t>();
}

// True for an own line that a kill or a full disk cut short.
bool is_cut_short(std::string_view line) {
  const size_t length = std::min(line.size(), kOwnStart.size());
  return line.substr(0, length) == kOwnStart.substr(0, length) && !Json::accept(line.begin(), line.end());
}

class Scanner {
 public:
  explicit Scanner(int64_t last_step) : last_step_(last_step) {}

  // `num_bytes` includes the line break, if there is one; `text` is empty if the line is too long.
  void line(std::string_view text, uint64_t num_bytes, bool ends, bool too_long) {
    ++number_;
    const std::optional<int64_t> step = too_long ? std::nullopt : own_step(text);
    if (step) scan_.last_step = std::max(scan_.last_step, *step);
    if (step && *step > last_step_) dropping_ = true;
    if (step && dropping_) {
      if (scan_.num_dropped++ == 0) scan_.first_dropped_step = *step;
      scan_.last_dropped_step = *step;
    } else if (step) {
      ++scan_.num_kept;
    } else if (!ends && !too_long && scan_.holds_own() && is_cut_short(text)) {
      scan_.drops_cut_short = dropping_ = true;
    } else {
      if (scan_.first_foreign_line == 0) scan_.first_foreign_line = number_;
      ++(dropping_ ? scan_.num_foreign_dropped : scan_.num_foreign_kept);
    }
    if (dropping_) return;
    scan_.kept_bytes += num_bytes;
    scan_.kept_ends_line = ends;
  }
  const MetricsScan& result() const { return scan_; }

 private:
  const int64_t last_step_;
  MetricsScan scan_;
  uint64_t number_ = 0;
  bool dropping_ = false;
};

std::string free_name_beside(const std::string& path) {
  for (int i = 1;; ++i) {
    const std::string name = path + ".old-" + std::to_string(i);
    if (path_kind_nofollow(name) == PathKind::kAbsent) return name;
  }
}

// Copies the first bytes of a file to a new file.
File copy_start(const File& from, uint64_t num_bytes, const std::string& path) {
  File to = File::create_exclusive(path);
  std::vector<char> block(kBlockBytes);
  for (uint64_t done = 0; done < num_bytes;) {
    const size_t size = static_cast<size_t>(std::min<uint64_t>(block.size(), num_bytes - done));
    from.pread_exact(block.data(), size, done);
    to.pwrite_exact(block.data(), size, done);
    done += size;
  }
  return to;
}

ReadSome reader_of(const File& file) {
  return [&file](void* data, size_t num_bytes, uint64_t offset) { return file.pread_some(data, num_bytes, offset); };
}

}  // namespace

MetricsScan scan_metrics(const ReadSome& read, int64_t last_step) {
  Scanner scanner(last_step);
  std::vector<char> block(kBlockBytes);
  std::string line;
  uint64_t line_bytes = 0;
  bool too_long = false;
  const auto end_line = [&](bool ends) {
    scanner.line(line, line_bytes, ends, too_long);
    line.clear();
    line_bytes = 0;
    too_long = false;
  };
  for (uint64_t offset = 0;;) {
    const size_t got = read(block.data(), block.size(), offset);
    if (got == 0) break;
    offset += got;
    for (size_t at = 0; at < got;) {
      const void* const found = std::memchr(block.data() + at, '\n', got - at);
      const size_t end = found ? static_cast<size_t>(static_cast<const char*>(found) - block.data()) : got;
      line_bytes += end - at;
      too_long |= line_bytes > kMaxLineBytes;
      if (too_long)
        line.clear();
      else
        line.append(block.data() + at, end - at);
      at = end;
      if (!found) continue;
      ++line_bytes;
      ++at;
      end_line(true);
    }
  }
  if (line_bytes > 0) end_line(false);
  return scanner.result();
}

MetricsScan scan_metrics_file(const std::string& path, int64_t last_step) {
  if (path_kind_nofollow(path) == PathKind::kAbsent) return {};
  const File file = File::open_nofollow(path);
  const MetricsScan scan = scan_metrics(reader_of(file), last_step);
  if (scan.holds_foreign() && !scan.holds_own())
    throw storage_error("'" + path + "' is in the way: line " + std::to_string(scan.first_foreign_line) +
                        " is not a line of metrics, so this program did not write it")
        .hint("move it away, or choose another run.output_dir");
  return scan;
}

MetricsFile open_metrics_file(const std::string& path, int64_t last_step, bool is_own, bool has_every_step) {
  const std::string name = std::filesystem::path(path).filename().string();
  const MetricsScan scan = scan_metrics_file(path, last_step);
  if (scan.num_foreign_kept > 0)
    counted_warning(
        "damaged lines of " + name,
        "'" + path + "': line " + std::to_string(scan.first_foreign_line) + " is not a line of metrics; it is kept",
        scan.num_foreign_kept);
  if (is_own && has_every_step && scan.last_step < last_step)
    counted_warning(name + " is incomplete",
                    path + (scan.last_step == 0 ? " has no step" : " ends at step " + std::to_string(scan.last_step)) +
                        ", and the run continues from step " + std::to_string(last_step));
  MetricsFile opened{File::open_or_create_own(path), scan.kept_bytes};
  const bool drops = scan.num_dropped + scan.num_foreign_dropped > 0 || scan.drops_cut_short;
  if (drops && (!is_own || scan.num_foreign_dropped > 0)) {
    const std::string old = free_name_beside(path);
    rename_durably(path, old);
    opened.file = copy_start(opened.file, scan.kept_bytes, path);
    counted_warning("earlier " + name + " kept", "the earlier content of '" + path + "' is kept as '" + old + "'");
  }
  if (scan.drops_cut_short) log::info("{}: the last line was cut short and is dropped", name);
  if (scan.num_dropped > 0)
    log::info("{}: steps {} to {} ({} {}) are dropped, since the run continues from step {}", name,
              scan.first_dropped_step, scan.last_dropped_step, scan.num_dropped,
              scan.num_dropped == 1 ? "line" : "lines", last_step);
  opened.file.truncate(opened.offset);
  if (!scan.kept_ends_line) opened.file.pwrite_exact("\n", 1, opened.offset++);
  return opened;
}

}  // namespace chassis
