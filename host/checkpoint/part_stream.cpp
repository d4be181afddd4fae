// Reads parts from tensors in memory, and writes them with their checksums.
#include "host/checkpoint/part_stream.hpp"

#include <cstring>

#include "host/base/error.hpp"
#include "host/checkpoint/checksum.hpp"
#include "host/checkpoint/element_copy.hpp"
#include "host/checkpoint/stream_writer.hpp"
#include "host/state/tile.hpp"

namespace chassis {
namespace {

const Piece& piece_with(const std::vector<Piece>& pieces, const Box& box, const std::string& fqn) {
  for (const Piece& piece : pieces) {
    if (intersection(piece.box, box) == box) return piece;
  }
  throw internal_error("a box of '" + fqn + "' is in no piece of its rank");
}

// The places of a part's elements in the rank's storage and in the box on disk.
Copy copy_to_disk(const Layout& layout, const SavePlan& plan, const SavePart& part) {
  const std::vector<Piece> pieces = layout.pieces(part.rank);
  const Piece& piece = piece_with(pieces, part.region, layout.descriptor().fqn);
  return {part.region, piece.view(part.region), part.place(plan).local};
}

void read_runs(const Tensor& flat, const Copy& copy, Dtype dtype, const ReserveBytes& room) {
  const auto element_bytes = static_cast<uint64_t>(size_bytes(dtype));
  for_each_run(copy, [&](int64_t from, int64_t to, int64_t length) {
    while (length > 0) {
      const auto bytes = room(static_cast<uint64_t>(to) * element_bytes, static_cast<uint64_t>(length) * element_bytes);
      const auto count = static_cast<int64_t>(bytes.size() / element_bytes);
      read_elements(flat, from, count, dtype, bytes.data());
      from += count, to += count, length -= count;
    }
  });
}

void read_tiles(const Tensor& flat, const Copy& copy, Dtype dtype, const ReserveBytes& room) {
  const auto element_bytes = static_cast<uint64_t>(size_bytes(dtype));
  const auto most = static_cast<uint64_t>(std::min<int64_t>(kLongRun * kShortRun, numel(copy.box.sizes())));
  std::vector<std::byte> packed(most * element_bytes);
  for_each_tile(copy, &Copy::to, kShortRun, kLongRun, [&](const Copy& tile) {
    const Shape sizes = tile.box.sizes();
    read_strided(flat, sizes, tile.from, dtype, packed.data());
    for_each_run({tile.box, {0, row_major_strides(sizes)}, tile.to}, [&](int64_t from, int64_t to, int64_t length) {
      copy_into(room, static_cast<uint64_t>(to) * element_bytes,
                std::span(packed).subspan(static_cast<uint64_t>(from) * element_bytes,
                                          static_cast<uint64_t>(length) * element_bytes));
    });
  });
}

}  // namespace

void copy_into(const ReserveBytes& room, uint64_t at, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::span<std::byte> out = room(at, bytes.size());
    std::memcpy(out.data(), bytes.data(), out.size());
    at += out.size();
    bytes = bytes.subspan(out.size());
  }
}

void cast_into(const ReserveBytes& room, const Tensor& flat, const Copy& copy, Dtype dtype) {
  (runs_agree(copy) ? read_runs : read_tiles)(flat, copy, dtype, room);
}

std::vector<bool> files_with_parts(const SavePlan& plan, const PartOwner& owner) {
  std::vector<bool> out(plan.layout.files.size());
  for (const SavePart& part : plan.parts)
    if (owner.writes(part)) out[plan.layout.places[part.box].file] = true;
  return out;
}

PartSource naming_tensors(PartSource source) {
  return [source = std::move(source)](const SavePlan& plan, const SavePart& part, const ReserveBytes& room) {
    try {
      source(plan, part, room);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kNumeric) throw;
      throw Error(error.code(), "'" + plan.boxes[part.box].name + "': " + error.message()).hint(error.hint_text());
    }
  };
}

PartSource from_tensors(LocalTensors tensors) {
  return naming_tensors(
      [tensors = std::move(tensors)](const SavePlan& plan, const SavePart& part, const ReserveBytes& room) {
        const Layout layout(plan.tensors[part.tensor].descriptor, plan.mesh);
        const Tensor flat = checked_flat(layout, part.rank, tensors);
        cast_into(room, flat, copy_to_disk(layout, plan, part), plan.boxes[part.box].dtype);
      });
}

std::vector<PartRemainders> stream_parts(
    const SavePlan& plan, const PartOwner& owner, std::vector<File>& files, const BucketPair& buckets,
    const std::function<void(const SavePart& part, const ReserveBytes& room)>& source) {
  std::vector<PartRemainders> remainders;
  StreamWriter writer(buckets);
  for (const SavePart& part : plan.parts) {
    if (!owner.writes(part)) continue;
    const DiskBox& box = plan.boxes[part.box];
    const DiskPlace& place = plan.layout.places[part.box];
    const auto element_bytes = static_cast<uint64_t>(size_bytes(box.dtype));
    RunsChecksum checksum(box.num_bytes()), formats(box.num_bytes(), plan.checksum);
    uint64_t filled_at = 0;
    std::span<std::byte> filling;  // the latest room; the source fills it before the next call
    const auto add_filled = [&] {
      checksum.add(filled_at, filling);
      if (plan.checksum != Crc::k32c) formats.add(filled_at, filling);
    };
    source(part, [&](uint64_t at, uint64_t num_bytes) {
      add_filled();
      filled_at = at;
      filling = writer.reserve(files[place.file], place.offset + at, num_bytes, element_bytes);
      return filling;
    });
    add_filled();
    remainders.push_back({checksum.remainder(), formats.remainder()});
  }
  writer.flush();
  return remainders;
}

}  // namespace chassis
