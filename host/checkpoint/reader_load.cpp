// Loads tensors from the files of a reader, and compares what was read with the checksums of the manifest.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "host/base/hash.hpp"
#include "host/base/units.hpp"
#include "host/checkpoint/checksum.hpp"
#include "host/checkpoint/element_copy.hpp"
#include "host/checkpoint/gather.hpp"
#include "host/checkpoint/reader.hpp"
#include "host/service/threads.hpp"
#include "host/state/tile.hpp"

namespace chassis {
namespace {

constexpr size_t kReadBytes = 256 << 10;     // at a time: stays in the core's cache until it is checked and cast
constexpr uint64_t kMaxSkippedBytes = 4096;  // the system reads whole pages anyway
constexpr size_t kMaxRuns = 4096;            // read at once

[[noreturn]] void throw_damage(const std::string& what) {
  DamagedCheckpoint error(what);
  error.hint("resume from an older checkpoint; `chassis ckpt verify` lists all damage");
  throw error;
}

// Plain values as bytes, for messages between ranks.
template <class Plain>
std::string bytes_of(const Plain& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
template <class Plain>
Plain take(std::string_view& bytes) {
  Plain value;
  CHASSIS_CHECK(bytes.size() >= sizeof value, "a message with checksums of another rank is too short");
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

// The boxes of elements [begin, end), counted in the order of the pieces.
std::vector<Box> boxes_of(const std::vector<Piece>& pieces, int64_t begin, int64_t end) {
  std::vector<Box> out;
  int64_t first = 0;  // index of the piece's first element
  for (const Piece& piece : pieces) {
    const int64_t num = numel(piece.box), from = std::max(begin, first), to = std::min(end, first + num);
    if (from < to)
      for (Box& box : flat_range_boxes(piece.box.sizes(), from - first, to - first)) {
        for (int k = 0; k < box.ndim(); ++k) box.begin[k] += piece.box.begin[k], box.end[k] += piece.box.begin[k];
        out.push_back(box);
      }
    first += num;
  }
  return out;
}

// Reads runs of bytes. Runs that lie near each other, such as the elements of a row of a transposed tensor, are read
// together with the bytes between them.
class RunReader {
 public:
  RunReader(const File& file, uint64_t begin, std::span<std::byte> scratch)
      : file_(file), begin_(begin), scratch_(scratch) {}

  // Fills `bytes` with the bytes at `offset`, in flush() at the latest.
  void read(uint64_t offset, std::span<std::byte> bytes) {
    const bool joins = !runs_.empty() && runs_.size() < kMaxRuns && offset >= end_ &&
                       offset - end_ <= kMaxSkippedBytes &&
                       offset + bytes.size() - runs_.front().first <= scratch_.size();
    if (!joins) flush();
    runs_.emplace_back(offset, bytes);
    end_ = offset + bytes.size();
  }
  void flush() {
    if (runs_.empty()) return;
    const uint64_t first = runs_.front().first;
    std::byte* const to = runs_.size() == 1 ? runs_.front().second.data() : scratch_.data();
    file_.pread_exact(to, end_ - first, begin_ + first);
    if (runs_.size() > 1)
      for (const auto& [offset, bytes] : runs_) std::memcpy(bytes.data(), to + (offset - first), bytes.size());
    runs_.clear();
  }

 private:
  const File& file_;
  const uint64_t begin_;
  const std::span<std::byte> scratch_;
  std::vector<std::pair<uint64_t, std::span<std::byte>>> runs_;
  uint64_t end_ = 0;  // end of the last run
};

// Reads elements of one box on disk into a rank's local tensor, and sums what it reads.
class BoxReader {
 public:
  // `flat`: the local tensor. Reads through the first bucket; `sums`: the remainder is wanted. All but `sums` must
  // outlive it.
  BoxReader(const File& file, const FormatScan::Found& found, const Tensor& flat, const BucketPair& buckets, bool sums)
      : file_(file),
        begin_(found.place.offset),
        dtype_(found.box.dtype),
        element_bytes_(static_cast<uint64_t>(size_bytes(dtype_))),
        box_bytes_(found.box.num_bytes()),
        flat_(flat),
        bucket_(buckets.bucket(0)),
        scratch_(buckets.bucket(1).first(std::min(buckets.bucket_bytes(), kReadBytes))),
        sums_(sums),
        most_elements_(static_cast<int64_t>(std::min(bucket_.size(), kReadBytes) / element_bytes_)),
        most_threads_(most_threads(flat.device(), bucket_.size())),
        checksum_(box_bytes_) {}

  void read(const Copy& copy) {
    if (runs_agree(copy))
      for_each_run(copy, [&](int64_t at, int64_t to, int64_t length) { read_run(at, to, length); });
    else
      read_tiles(copy);
  }
  uint64_t num_read() const { return num_read_; }
  // For box_checksum(); meaningless without `sums`.
  uint32_t remainder() const { return remainder_ ^ checksum_.remainder(); }

 private:
  // A copy to a device runs on the stream of this thread, so other threads do not read.
  static int64_t most_threads(Device device, size_t bucket_bytes) {
    if (device.type != Device::Type::kCpu) return 1;
    return std::clamp<int64_t>(static_cast<int64_t>(bucket_bytes / kReadBytes), 1, num_threads());
  }

  // Threads divide a long run; each uses its part of the bucket.
  void read_run(int64_t at, int64_t to, int64_t length) {
    num_read_ += static_cast<uint64_t>(length) * element_bytes_;
    const int64_t num_parts = std::min(most_threads_, (length + most_elements_ - 1) / most_elements_);
    if (num_parts == 1) return read_elements_of_run(at, to, length, bucket_.data(), checksum_);
    std::vector<RunsChecksum> sums(static_cast<size_t>(num_parts), RunsChecksum(box_bytes_));
    run_parallel(num_parts, 1, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part) {
        const int64_t begin = length * part / num_parts, end = length * (part + 1) / num_parts;
        read_elements_of_run(at + begin, to + begin, end - begin,
                             bucket_.data() + static_cast<uint64_t>(part) * kReadBytes,
                             sums[static_cast<size_t>(part)]);
      }
    });
    for (const RunsChecksum& sum : sums) remainder_ ^= sum.remainder();
  }
  // Reads straight into the tensor if no cast is needed, else through `room`.
  void read_elements_of_run(int64_t at, int64_t to, int64_t length, std::byte* room, RunsChecksum& sum) const {
    for (int64_t num = 0; length > 0; at += num, to += num, length -= num) {
      num = std::min(length, most_elements_);
      std::byte* const direct = direct_memory(flat_, to, dtype_);
      const std::span<std::byte> bytes(direct != nullptr ? direct : room, static_cast<uint64_t>(num) * element_bytes_);
      const uint64_t offset = static_cast<uint64_t>(at) * element_bytes_;
      file_.pread_exact(bytes.data(), bytes.size(), begin_ + offset);
      if (sums_) sum.add(offset, bytes);
      if (direct == nullptr) write_elements(flat_, to, num, dtype_, bytes.data());
    }
  }

  // Tiles are packed in the bucket in the order of the file.
  void read_tiles(const Copy& copy) {
    const auto room = static_cast<int64_t>(bucket_.size() / element_bytes_);
    const int64_t short_run = std::min(kShortRun, std::max<int64_t>(1, room / kLongRun));
    for_each_tile(copy, &Copy::from, std::min(kLongRun, room / short_run), short_run,
                  [&](const Copy& tile) { read_tile(tile); });
  }
  void read_tile(const Copy& tile) {
    const Shape sizes = tile.box.sizes();
    RunReader runs(file_, begin_, scratch_);
    for_each_packed_run(tile, [&](uint64_t offset, std::span<std::byte> bytes) { runs.read(offset, bytes); });
    runs.flush();
    for_each_packed_run(tile, [&](uint64_t offset, std::span<std::byte> bytes) {
      if (sums_) checksum_.add(offset, bytes);
      num_read_ += bytes.size();
    });
    write_strided(flat_, sizes, tile.to, dtype_, bucket_.data());
  }
  // Calls visit(offset in the box, place in the bucket) for each run of a tile.
  template <class Visit>
  void for_each_packed_run(const Copy& tile, const Visit& visit) const {
    const StridedView packed{0, row_major_strides(tile.box.sizes())};
    for_each_run({tile.box, tile.from, packed}, [&](int64_t at, int64_t to, int64_t length) {
      visit(
          static_cast<uint64_t>(at) * element_bytes_,
          bucket_.subspan(static_cast<uint64_t>(to) * element_bytes_, static_cast<uint64_t>(length) * element_bytes_));
    });
  }

  const File& file_;
  const uint64_t begin_;  // of the box in the file
  const Dtype dtype_;
  const uint64_t element_bytes_, box_bytes_;
  const Tensor& flat_;
  const std::span<std::byte> bucket_, scratch_;
  const bool sums_;
  const int64_t most_elements_;  // read at a time
  const int64_t most_threads_;
  RunsChecksum checksum_;   // of what this thread read
  uint32_t remainder_ = 0;  // of what other threads read
  uint64_t num_read_ = 0;
};

}  // namespace

// A part of a tensor that is on disk.
struct CheckpointReader::PartToLoad {
  const LoadTensor* tensor;
  StoredPart part;
  const DiskTensor* from;
  bool is_first;  // the first of the tensor's parts

  uint64_t num_bytes() const { return static_cast<uint64_t>(numel(part.box) * size_bytes(from->dtype)); }
};

LoadResult CheckpointReader::load(std::span<const LoadTensor> tensors, const MeshShape& mesh, const BucketPair& buckets,
                                  const LocalTensors& local, const LoadOptions& options) {
  check(tensors, options);
  LoadResult result;
  std::vector<PartToLoad> order;
  uint64_t done_bytes = 0, total_bytes = 0;
  for (const LoadTensor& tensor : tensors) {
    std::vector<PartToLoad> wanted;
    for (StoredPart& part : tensor.all_parts()) {
      const DiskTensor* from = find(part.disk_name);
      wanted.push_back({&tensor, std::move(part), from, wanted.empty()});
    }
    const bool is_there =
        std::all_of(wanted.begin(), wanted.end(), [](const PartToLoad& part) { return part.from != nullptr; });
    if (!is_there) {
      result.absent.push_back(tensor.descriptor.fqn);
      continue;
    }
    for (PartToLoad& part : wanted) {
      total_bytes += part.num_bytes();
      order.push_back(std::move(part));
    }
  }
  // Load in the order of the files, so that the system can read ahead.
  const auto place = [&](const DiskTensor& found) {
    const DiskPlace& first = scan_.boxes[found.boxes.front()].place;
    return std::pair(first.file, first.offset);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](const PartToLoad& a, const PartToLoad& b) { return place(*a.from) < place(*b.from); });
  Values values(*this);
  for (const PartToLoad& wanted : order) {
    if (!wanted.tensor->take) {
      load_part(wanted, mesh, buckets, local, options, result);
    } else if (wanted.is_first) {  // loads all other parts too
      load_values(*wanted.tensor, values, mesh, buckets, options);
      values.add_to(result);
      ++result.num_tensors;
    }
    done_bytes += wanted.num_bytes();
    if (options.progress) options.progress(done_bytes, total_bytes);
  }
  values.add_parts_to(result);
  return result;
}

void CheckpointReader::load_values(const LoadTensor& tensor, Values& values, const MeshShape& mesh,
                                   const BucketPair& buckets, const LoadOptions& options) {
  const Layout layout(tensor.descriptor, mesh);
  std::vector<Piece> pieces = layout.pieces(options.rank);
  if (options.owned_only) std::erase_if(pieces, [](const Piece& piece) { return !piece.owned; });
  int64_t count = 0;
  for (const Piece& piece : pieces) count += numel(piece.box);
  constexpr int64_t kMostValues = 1 << 20;
  const auto fit = std::min(kMostValues, static_cast<int64_t>(buckets.bucket_bytes() / sizeof(float)));
  const int64_t room = fit / tensor.take_block * tensor.take_block;
  std::vector<float> own(room == 0 ? static_cast<size_t>(tensor.take_block) : 0);  // a block exceeds the bucket
  const std::span<float> bucket =
      room == 0 ? std::span(own)
                : std::span(reinterpret_cast<float*>(buckets.bucket(0).data()), static_cast<size_t>(room));
  const std::vector<StoredPart> parts = tensor.all_parts();
  const bool is_hashed = options.hashed && options.hashed(tensor.descriptor);
  for (int64_t begin = 0; begin < count; begin += std::ssize(bucket)) {
    const std::span<float> some = bucket.first(static_cast<size_t>(std::min(std::ssize(bucket), count - begin)));
    size_t at = 0;
    for (const Box& box : boxes_of(pieces, begin, begin + std::ssize(some))) {
      const auto num = static_cast<size_t>(numel(box));
      values.read(parts, box, some.subspan(at, num), is_hashed);
      at += num;
    }
    tensor.take(begin, some);
  }
}

void CheckpointReader::load_part(const PartToLoad& wanted, const MeshShape& mesh, const BucketPair& buckets,
                                 const LocalTensors& local, const LoadOptions& options, LoadResult& result) {
  const Layout layout(wanted.tensor->descriptor, mesh);
  if (!layout.holds(options.rank)) return;
  const Tensor flat = checked_flat(layout, options.rank, local);
  std::vector<Piece> pieces = layout.pieces(options.rank);
  if (options.owned_only) std::erase_if(pieces, [](const Piece& piece) { return !piece.owned; });
  const bool is_hashed = options.hashed && options.hashed(wanted.tensor->descriptor);
  for (const uint32_t i : wanted.from->boxes) {
    const FormatScan::Found& found = scan_.boxes[i];
    if (found.box.box.empty()) continue;
    BoxReader box(directory_->open(found.place.file), found, flat, buckets, !manifest_crc_.empty() || is_hashed);
    for (const Copy& copy : copies(wanted.part.pieces(found.box.box), pieces)) box.read(copy);
    result.num_bytes += box.num_read();
    if (box.num_read() == 0) continue;
    if (is_hashed) result.hashed.push_back({i, box.remainder(), box.num_read()});
    if (!manifest_crc_.empty()) verify_or_keep({i, box.remainder(), box.num_read()}, result);
  }
  if (wanted.is_first) ++result.num_tensors;
}

void CheckpointReader::verify_or_keep(const PartRead& read, LoadResult& result) const {
  if (read.num_bytes < scan_.boxes[read.box].box.num_bytes()) {
    result.parts.push_back(read);
    return;
  }
  compare_checksum(read.box, box_checksum(read.remainder, read.num_bytes));
  result.verified_bytes += read.num_bytes;
}

ReadBytes CheckpointReader::verify_parts(const LoadResult& result, World& world) const {
  const std::string occasion = "checksums of " + path();
  std::string mine = bytes_of(ReadBytes{result.num_bytes, result.verified_bytes});
  for (const PartRead& part : result.parts) mine += bytes_of(part);
  const std::vector<std::string> all = gather_on_first(world, occasion, mine);

  std::string outcome;
  if (world.rank() == 0) {
    ReadBytes total;
    const std::string damage = damage_of_parts(all, total);
    outcome = bytes_of(total) + damage;
  }
  outcome = world.exchange(occasion + ": outcome", outcome)[0];
  std::string_view text = outcome;
  const auto total = take<ReadBytes>(text);
  if (!text.empty()) throw_damage(std::string(text));
  return total;
}

std::string CheckpointReader::damage_of_parts(const std::vector<std::string>& all, ReadBytes& total) const {
  std::map<uint32_t, PartRead> boxes;
  for (std::string_view text : all) {
    const auto read = take<ReadBytes>(text);
    total.num_bytes += read.num_bytes;
    total.num_verified += read.num_verified;
    while (!text.empty()) {
      const auto part = take<PartRead>(text);
      CHASSIS_CHECK(part.box < manifest_crc_.size(), "ranks found different boxes in '" + path() + "'");
      boxes[part.box].remainder ^= part.remainder;
      boxes[part.box].num_bytes += part.num_bytes;
    }
  }
  for (const auto& [box, read] : boxes) {
    if (read.num_bytes != scan_.boxes[box].box.num_bytes()) continue;
    const std::string damage = damage_of(box, box_checksum(read.remainder, read.num_bytes));
    if (!damage.empty()) return damage;
    total.num_verified += read.num_bytes;
  }
  return "";
}

std::string CheckpointReader::content_hash(const std::vector<PartRead>& hashed, World& world) const {
  const std::string occasion = "content of " + path();
  std::string mine;
  for (const PartRead& part : hashed) mine += bytes_of(part);
  const std::vector<std::string> all = gather_on_first(world, occasion, mine);
  std::string hash;
  if (world.rank() == 0) {
    std::map<uint32_t, PartRead> boxes;
    for (std::string_view text : all)
      while (!text.empty()) {
        const auto part = take<PartRead>(text);
        CHASSIS_CHECK(part.box < scan_.boxes.size(), "ranks found different boxes in '" + path() + "'");
        boxes[part.box].remainder ^= part.remainder;
        boxes[part.box].num_bytes += part.num_bytes;
      }
    std::vector<std::string> lines;
    for (const auto& [i, read] : boxes) {
      const DiskBox& box = scan_.boxes[i].box;
      lines.push_back(fmt::format("{} {} {} {} {} {:08x}\n", box.name, dtype_name(box.dtype),
                                  chassis::text(box.global_shape), chassis::text(box.box), read.num_bytes,
                                  read.remainder));
    }
    std::sort(lines.begin(), lines.end());
    Sha256 sum;
    for (const std::string& line : lines) sum.update(line);
    hash = sum.hex();
  }
  return world.exchange(occasion + ": hash", hash)[0];
}

std::string ReadBytes::text() const {
  const std::string total = bytes_text(num_bytes);
  if (num_verified == num_bytes) return total + ", all of it compared with its checksums";
  if (num_verified == 0) return total + ", no checksums to compare it with";
  return total + ", " + bytes_text(num_bytes - num_verified) + " of it not compared with checksums";
}

std::string CheckpointReader::damage_of(uint32_t box, uint32_t crc) const {
  if (manifest_crc_.empty() || crc == manifest_crc_[box]) return "";
  const FormatScan::Found& found = scan_.boxes[box];
  return "tensor '" + found.box.name + "' in '" + path() + "/" + directory_->files()[found.place.file].path +
         fmt::format("' is damaged: its CRC32C is {:08x}, the manifest says {:08x}", crc, manifest_crc_[box]);
}

void CheckpointReader::compare_checksum(uint32_t box, uint32_t crc) const {
  const std::string damage = damage_of(box, crc);
  if (!damage.empty()) throw_damage(damage);
}

}  // namespace chassis
