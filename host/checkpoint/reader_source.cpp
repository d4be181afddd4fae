// A reader as the source of a save: copies from file to file, which may order the elements differently.
#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "host/base/error.hpp"
#include "host/checkpoint/checksum.hpp"
#include "host/checkpoint/element_copy.hpp"
#include "host/checkpoint/part_stream.hpp"
#include "host/checkpoint/reader.hpp"
#include "host/state/tile.hpp"

namespace chassis {
namespace {

constexpr int64_t kCastElements = 1 << 16;  // elements that are cast at a time
constexpr int64_t kTileRun = 512;           // elements along each side of a tile
constexpr uint64_t kPieceBytes = 1 << 20;   // bytes of a piece of a box that is read once more

}  // namespace

// Copies from file to file, and compares every box with its checksum after all of it has been read.
class CheckpointReader::BoxCopier {
 public:
  explicit BoxCopier(CheckpointReader& reader) : reader_(reader) {}

  // Throws a numeric error if a value that is copied is not finite.
  void require_finite() { is_finite_ = true; }
  // Whether the next reads are added to hashed().
  void set_hashed(bool hashed) { is_hashed_ = hashed; }
  std::vector<PartRead> hashed() const {
    std::vector<PartRead> parts;
    for (const auto& [box, read] : hashed_) parts.push_back({box, read.checksum.remainder(), read.num_bytes});
    return parts;
  }

  // The number of bytes read since the last call, and that of bytes in boxes compared with their checksums.
  uint64_t take_num_bytes() { return std::exchange(num_bytes_, 0); }
  uint64_t take_num_verified() { return std::exchange(num_verified_, 0); }
  // Boxes that have been read in part.
  std::vector<PartRead> unfinished() const {
    std::vector<PartRead> parts;
    for (const auto& [box, read] : boxes_) parts.push_back({box, read.checksum.remainder(), read.num_bytes});
    return parts;
  }

  // Copies the elements of a tensor's part that lie in `to`, as f32.
  void copy_part(const StoredPart& part, const Piece& to, const ReserveBytes& room) {
    const DiskTensor* found = reader_.find(part.disk_name);
    CHASSIS_CHECK(found != nullptr, part.disk_name);
    for (const uint32_t box : found->boxes) {
      const Piece piece = part.piece(reader_.scan_.boxes[box].box.box);
      if (!piece.box.empty()) copy(box, piece, to, Dtype::f32, room);
    }
  }
  // `from`: the places of a tensor's elements in the scanned box; `to`: those in the new box, of type `dtype`.
  void copy(uint32_t box, const Piece& from, const Piece& to, Dtype dtype, const ReserveBytes& room) {
    for (const Copy& copy : copies({from}, {to})) {
      if (runs_agree(copy))
        copy_runs(box, copy, dtype, room);
      else
        copy_tiles(box, copy, dtype, room);
    }
  }

 private:
  struct Read {
    RunsChecksum checksum;
    uint64_t num_bytes;
  };

  void copy_runs(uint32_t box, const Copy& copy, Dtype to, const ReserveBytes& room) {
    const Dtype from = dtype_of(box);
    const auto in_bytes = static_cast<uint64_t>(size_bytes(from)), out_bytes = static_cast<uint64_t>(size_bytes(to));
    const bool casts = from != to;
    const Tensor chunk = casts ? Tensor::empty(std::vector<int64_t>{kCastElements}, from) : Tensor();
    for_each_run(copy, [&](int64_t at, int64_t to_at, int64_t length) {
      while (length > 0) {
        const uint64_t wanted = static_cast<uint64_t>(casts ? std::min(length, kCastElements) : length) * out_bytes;
        const std::span<std::byte> bytes = room(static_cast<uint64_t>(to_at) * out_bytes, wanted);
        const auto count = static_cast<int64_t>(bytes.size() / out_bytes);
        std::byte* const memory = casts ? chunk.data_as<std::byte>() : bytes.data();
        read(box, at, {memory, static_cast<uint64_t>(count) * in_bytes});
        if (casts) read_elements(chunk, 0, count, to, bytes.data());
        expect_finite(box, to, bytes.data(), count);
        at += count, to_at += count, length -= count;
      }
    });
  }

  void copy_tiles(uint32_t box, const Copy& copy, Dtype to, const ReserveBytes& room) {
    const Dtype from = dtype_of(box);
    const auto in_bytes = static_cast<uint64_t>(size_bytes(from)), out_bytes = static_cast<uint64_t>(size_bytes(to));
    const Tensor chunk = Tensor::empty(std::vector<int64_t>{kTileRun * kTileRun}, from);
    std::vector<std::byte> turned(static_cast<size_t>(kTileRun * kTileRun) * out_bytes);
    for_each_tile(copy, &Copy::from, kTileRun, kTileRun, [&](const Copy& tile) {
      const StridedView packed{0, row_major_strides(tile.box.sizes())};
      for_each_run({tile.box, tile.from, packed}, [&](int64_t at, int64_t in_chunk, int64_t length) {
        read(box, at,
             {chunk.data_as<std::byte>() + static_cast<uint64_t>(in_chunk) * in_bytes,
              static_cast<uint64_t>(length) * in_bytes});
      });
      const Copy out = in_order_of(&Copy::to, {tile.box, packed, tile.to});
      const Shape sizes = out.box.sizes();
      read_strided(chunk, sizes, out.from, to, turned.data());
      expect_finite(box, to, turned.data(), numel(sizes));
      for_each_run({out.box, {0, row_major_strides(sizes)}, out.to}, [&](int64_t at, int64_t to_at, int64_t length) {
        copy_into(room, static_cast<uint64_t>(to_at) * out_bytes,
                  std::span(turned).subspan(static_cast<uint64_t>(at) * out_bytes,
                                            static_cast<uint64_t>(length) * out_bytes));
      });
    });
  }

  // Values on disk that are not finite are a storage error, as for the loader; values that the cast makes infinite are
  // a numeric error.
  void expect_finite(uint32_t box, Dtype dtype, std::byte* values, int64_t count) const {
    if (!is_finite_ || !is_float(dtype)) return;
    if (Tensor::borrow(values, std::vector<int64_t>{count}, dtype).all_finite()) return;
    const std::string tensor = "tensor '" + reader_.scan_.boxes[box].box.name + "' in '" + reader_.path() + "'";
    if (!is_finite_on_disk(box))
      throw storage_error(tensor + " has a value that is NaN or infinite").hint("use an earlier checkpoint");
    throw Error(ExitCode::kNumeric, tensor + " has a value that overflows " + std::string(dtype_name(dtype)))
        .hint("write bf16 or fp32 instead");
  }
  // Reads the box once more. Throws if it is damaged.
  bool is_finite_on_disk(uint32_t box) const {
    const FormatScan::Found& found = reader_.scan_.boxes[box];
    const Dtype dtype = found.box.dtype;
    const File& file = reader_.directory_->open(found.place.file);
    std::vector<std::byte> piece(kPieceBytes);
    uint32_t crc = 0;
    bool is_finite = true;
    for (uint64_t at = 0; at < found.box.num_bytes(); at += piece.size()) {
      piece.resize(std::min(kPieceBytes, found.box.num_bytes() - at));
      file.pread_exact(piece.data(), piece.size(), found.place.offset + at);
      crc = crc32c(crc, piece.data(), piece.size());
      const auto count = static_cast<int64_t>(piece.size()) / size_bytes(dtype);
      is_finite &= Tensor::borrow(piece.data(), std::vector<int64_t>{count}, dtype).all_finite();
    }
    if (!reader_.manifest_crc_.empty()) reader_.compare_checksum(box, crc);
    return is_finite;
  }
  void read(uint32_t box, int64_t at, std::span<std::byte> bytes) {
    const FormatScan::Found& found = reader_.scan_.boxes[box];
    const uint64_t offset = static_cast<uint64_t>(at * size_bytes(found.box.dtype));
    reader_.directory_->open(found.place.file).pread_exact(bytes.data(), bytes.size(), found.place.offset + offset);
    const auto add_to = [&](std::map<uint32_t, Read>& reads) -> Read& {
      Read& so_far = reads.try_emplace(box, Read{RunsChecksum(found.box.num_bytes()), 0}).first->second;
      so_far.checksum.add(offset, bytes);
      so_far.num_bytes += bytes.size();
      return so_far;
    };
    num_bytes_ += bytes.size();
    if (is_hashed_) add_to(hashed_);
    if (reader_.manifest_crc_.empty()) return;
    const Read& so_far = add_to(boxes_);
    if (so_far.num_bytes < found.box.num_bytes()) return;
    reader_.compare_checksum(box, box_checksum(so_far.checksum.remainder(), so_far.num_bytes));
    num_verified_ += so_far.num_bytes;
    boxes_.erase(box);
  }
  Dtype dtype_of(uint32_t box) const { return reader_.scan_.boxes[box].box.dtype; }

  CheckpointReader& reader_;
  std::map<uint32_t, Read> boxes_;  // those that have been read in part
  std::map<uint32_t, Read> hashed_;
  bool is_hashed_ = false, is_finite_ = false;
  uint64_t num_bytes_ = 0, num_verified_ = 0;
};

CheckpointReader::Values::Values(CheckpointReader& reader) : copier_(std::make_unique<BoxCopier>(reader)) {}
CheckpointReader::Values::~Values() = default;

void CheckpointReader::Values::read(std::span<const StoredPart> parts, const Box& region, std::span<float> out,
                                    bool hashed) {
  CHASSIS_CHECK(static_cast<int64_t>(out.size()) == numel(region), "the memory for a region has its size");
  const Piece to{region, {0, row_major_strides(region.sizes())}, true};
  const ReserveBytes room = [&](uint64_t at, uint64_t num_bytes) {
    return std::as_writable_bytes(out).subspan(at, num_bytes);
  };
  copier_->set_hashed(hashed);
  for (const StoredPart& part : parts) copier_->copy_part(part, to, room);
}

std::vector<PartRead> CheckpointReader::Values::hashed() const { return copier_->hashed(); }

void CheckpointReader::Values::add_to(LoadResult& result) {
  result.num_bytes += copier_->take_num_bytes();
  result.verified_bytes += copier_->take_num_verified();
}

void CheckpointReader::Values::add_parts_to(LoadResult& result) const {
  for (const PartRead& part : copier_->unfinished()) result.parts.push_back(part);
  for (const PartRead& part : copier_->hashed()) result.hashed.push_back(part);
}

PartSource CheckpointReader::source(std::function<std::vector<StoredPart>(const Descriptor& tensor)> parts,
                                    bool finite) {
  auto copier = std::make_shared<BoxCopier>(*this);
  if (finite) copier->require_finite();
  return naming_tensors(
      [this, copier, parts = std::move(parts)](const SavePlan& plan, const SavePart& part, const ReserveBytes& room) {
        const Piece to = part.place(plan);
        for (const StoredPart& from : parts(plan.tensors[part.tensor].descriptor)) {
          const DiskTensor* found = find(from.disk_name);
          CHASSIS_CHECK(found != nullptr, from.disk_name);
          for (const uint32_t box : found->boxes) {
            const Piece piece = from.piece(scan_.boxes[box].box.box);
            if (!piece.box.empty()) copier->copy(box, piece, to, plan.boxes[part.box].dtype, room);
          }
        }
      });
}

uint32_t CheckpointReader::checksum(const Shape& shape, std::span<const StoredPart> parts) {
  constexpr size_t kChunkBytes = 1 << 20;
  std::vector<std::byte> chunk(kChunkBytes);
  uint64_t at = 0, num_bytes = 0;  // place and size of the chunk's bytes in the row-major tensor
  RunsChecksum sum(static_cast<uint64_t>(numel(shape)) * sizeof(float));
  const auto add_chunk = [&] { sum.add(at, std::span(chunk).first(std::exchange(num_bytes, 0))); };
  const ReserveBytes room = [&](uint64_t next, uint64_t wanted) {
    add_chunk();
    at = next, num_bytes = std::min<uint64_t>(wanted, kChunkBytes);
    return std::span(chunk).first(num_bytes);
  };
  const Piece whole{Box::whole(shape), row_major_view(shape, Box::whole(shape))};
  BoxCopier copier(*this);
  for (const StoredPart& from : parts) copier.copy_part(from, whole, room);
  add_chunk();
  return sum.remainder();
}

PartSource CheckpointReader::source() {
  return source([](const Descriptor& tensor) {
    return std::vector<StoredPart>{StoredPart::whole(tensor.fqn, tensor.global_shape)};
  });
}

}  // namespace chassis
