// Checkpoints that numpy.load() reads: a ZIP file (PKWARE's APPNOTE) of .npy arrays (NEP 1), up to 4 GiB. The plugin
// says where everything is; the host makes all ranks write their parts there, computes checksums and commits
// atomically. Headers contain CRC-32s, which are known last, so finish() fills in all headers and the directory.
#include <algorithm>
#include <sstream>
#include <vector>

#include "chassis/format.hpp"
#include "chassis/plugin.hpp"

namespace {
using namespace chassis;

constexpr std::string_view kFile = "model.npz";
constexpr uint64_t kLocalBytes = 30, kEntryBytes = 46, kEndBytes = 22;  // without names
struct Type { uint32_t dtype; std::string_view npy; };
constexpr Type kTypes[] = {{CHASSIS_DTYPE_F32, "<f4"}, {CHASSIS_DTYPE_F64, "<f8"}, {CHASSIS_DTYPE_F16, "<f2"},
                           {CHASSIS_DTYPE_I64, "<i8"}, {CHASSIS_DTYPE_I32, "<i4"}, {CHASSIS_DTYPE_U8, "|u1"}};

// Little-endian numbers, each with its size in bytes.
std::string packed(std::initializer_list<std::pair<uint64_t, int>> numbers) {
  std::string out;
  for (auto [number, num_bytes] : numbers)
    for (; num_bytes > 0; --num_bytes, number >>= 8) out += static_cast<char>(number & 255);
  return out;
}
uint64_t number_at(std::string_view bytes, size_t at, size_t num_bytes) {
  uint64_t number = 0;
  while (num_bytes-- > 0) number = number << 8 | static_cast<uint8_t>(bytes[at + num_bytes]);
  return number;
}

struct Array {
  std::string name, header;
  uint64_t local, at, data, end;  // offsets of the ZIP header, the array's header, the tensor, and the end
};

std::vector<Array> arrays_of(const chassis_save_request_t& request) {
  std::vector<Array> arrays;
  for (const chassis_disk_tensor_t* tensor : std::span(request.tensors, request.num_tensors)) {
    const chassis_disk_tensor_t& t = *tensor;
    const auto type = std::ranges::find(kTypes, t.dtype, &Type::dtype);
    if (type == std::end(kTypes))
      throw Failure(CHASSIS_INVALID_ARGUMENT, text_of(t.name), ": .npy files here cannot hold its dtype; use fp32");
    std::string text = "{'descr': '" + std::string(type->npy) + "', 'fortran_order': False, 'shape': (";
    for (uint32_t dim = 0; dim < t.num_dims; ++dim) text += std::to_string(t.global_shape[dim]) + ", ";
    Array a{std::string(text_of(t.name)) + ".npy", text + "), }", arrays.empty() ? 0 : arrays.back().end, 0, 0, 0};
    a.at = a.local + kLocalBytes + a.name.size();
    a.data = (a.at + 11 + a.header.size() + 63) / 64 * 64;
    a.end = a.data + t.num_bytes;
    if (a.end >= UINT32_MAX || arrays.size() == UINT16_MAX)
      throw Failure(CHASSIS_INVALID_ARGUMENT, text_of(t.name), ": a ZIP file holds at most 4 GiB and 65535 members");
    a.header.resize(a.data - a.at - 11, ' ');
    a.header = std::string("\x93NUMPY\1\0", 8) + packed({{a.header.size() + 1, 2}}) + a.header + "\n";
    arrays.push_back(std::move(a));
  }
  return arrays;
}

class Npz final : public Format {
 public:
  static constexpr std::string_view kDoc = "example: model.npz, for numpy.load()";
  static constexpr bool kWholeTensors = true;
  static constexpr uint32_t kChecksum = CHASSIS_CHECKSUM_CRC32;
  using Format::Format;
  void layout(const chassis_save_request_t& request, LayoutSink& out) override {
    const std::vector<Array> arrays = arrays_of(request);
    uint64_t num_bytes = (arrays.empty() ? 0 : arrays.back().end) + kEndBytes;
    for (const Array& a : arrays) num_bytes += kEntryBytes + a.name.size();
    const uint32_t file = out.file(kFile, "", num_bytes);
    for (uint32_t i = 0; i < arrays.size(); ++i) out.place(i, file, arrays[i].data);
  }

  void finish(const chassis_save_request_t& request, uint32_t /*file*/, FinishSink& out) override {
    uint64_t end = 0, count = 0;
    std::string directory;
    for (const Array& a : arrays_of(request)) {
      out.fill(a.at, a.header);
      const uint64_t crc32 = out.checksum(a.at, a.end - a.at), num_bytes = a.end - a.at;
      const std::string common = packed({{20, 2}, {0x800, 2} /* names in UTF-8 */, {0, 2} /* stored */, {0x210000, 4},
                                         {crc32, 4}, {num_bytes, 4}, {num_bytes, 4}, {a.name.size(), 2}, {0, 2}});
      out.fill(a.local, "PK\3\4" + common + a.name);
      directory += "PK\1\2" + packed({{20, 2}}) + common + packed({{0, 6}, {0, 4}, {a.local, 4}}) + a.name;
      end = a.end, ++count;
    }
    directory += "PK\5\6" + packed({{0, 4}, {count, 2}, {count, 2}, {directory.size(), 4}, {end, 4}, {0, 2}});
    out.fill(end, directory);
  }

  void scan(const Directory& directory, ScanSink& out) override {
    uint32_t file = 0;
    while (file < directory.num_files() && directory.entry(file).path != kFile) ++file;
    if (file == directory.num_files()) throw Failure(CHASSIS_NOT_FOUND, "no ", kFile);
    const uint64_t end = std::max(directory.entry(file).num_bytes, kEndBytes) - kEndBytes;
    const std::string last = directory.read_text(file, end, kEndBytes);
    if (!last.starts_with("PK\5\6")) throw Failure(CHASSIS_DATA_LOSS, kFile, " does not end with a ZIP directory");
    for (uint64_t i = 0, at = number_at(last, 16, 4); i < number_at(last, 10, 2); ++i) {
      const std::string entry = directory.read_text(file, at, kEntryBytes);
      std::string name = directory.read_text(file, at + kEntryBytes, number_at(entry, 28, 2));
      at += kEntryBytes + name.size() + number_at(entry, 30, 2) + number_at(entry, 32, 2);
      const uint64_t num_bytes = number_at(entry, 24, 4), begin = number_at(entry, 42, 4);
      const std::string local = directory.read_text(file, begin, kLocalBytes);
      const uint64_t npy = begin + kLocalBytes + number_at(local, 26, 2) + number_at(local, 28, 2);
      const uint64_t header_bytes = 10 + number_at(directory.read_text(file, npy + 8, 2), 0, 2);
      const std::string text = directory.read_text(file, npy, header_bytes);
      const size_t descr = text.find("'descr': '"), shape = text.find("'shape': (");
      const auto type = std::ranges::find(kTypes, text.substr(std::min(descr, text.size() - 10) + 10, 3), &Type::npy);
      if (type == std::end(kTypes) || shape == text.npos || num_bytes < header_bytes || name.size() < 4)
        throw Failure(CHASSIS_DATA_LOSS, kFile, ": ", name, " is not an array of a supported type");
      std::vector<int64_t> sizes;
      std::istringstream numbers(text.substr(shape + 10));
      for (int64_t size; numbers >> size; numbers.ignore()) sizes.push_back(size);
      name.resize(name.size() - 4);
      out.tensor(name, type->dtype, sizes, num_bytes - header_bytes, file, npy + header_bytes);
    }
  }
};

}  // namespace

CHASSIS_PLUGIN("license=Apache-2.0\n", Npz)
