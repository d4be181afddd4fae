// Widens or narrows ids in small pieces.
#include "host/data/token_bytes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "host/base/error.hpp"

namespace chassis {
namespace {

static_assert(std::endian::native == std::endian::little, "ids are little-endian");

constexpr size_t kPieceIds = 4096;

// Each is widened separately: ?: would convert an i32 and a u32 to u32.
template <class Signed, class Unsigned>
int64_t widened(const char* bytes, bool is_signed) {
  if (is_signed) return read_number<Signed>(bytes);
  return read_number<Unsigned>(bytes);
}

int64_t id_at(const char* bytes, TokenType type) {
  switch (type.num_bytes) {
    case 1:
      return widened<int8_t, uint8_t>(bytes, type.is_signed);
    case 2:
      return widened<int16_t, uint16_t>(bytes, type.is_signed);
    case 4:
      return widened<int32_t, uint32_t>(bytes, type.is_signed);
    default:
      return read_number<int64_t>(bytes);
  }
}

}  // namespace

std::optional<TokenType> token_type_of_megatron(int code) {
  switch (code) {
    case 1:
      return TokenType{1, false};
    case 2:
      return TokenType{1, true};
    case 3:
      return TokenType{2, true};
    case 4:
      return TokenType{4, true};
    case 5:
      return TokenType{8, true};
    case 8:
      return TokenType{2, false};
    default:
      return std::nullopt;
  }
}

void append_ids(std::string& out, const File& file, uint64_t offset, uint64_t num_ids, TokenType type) {
  std::array<char, kPieceIds * 8> piece;
  for (uint64_t done = 0; done < num_ids;) {
    const auto count = static_cast<size_t>(std::min<uint64_t>(kPieceIds, num_ids - done));
    const uint64_t begin_bytes = offset + done * type.num_bytes;
    file.pread_exact(piece.data(), count * type.num_bytes, begin_bytes);
    const size_t begin = out.size();
    out.resize(begin + count * 4);
    for (size_t i = 0; i < count; ++i) {
      const int64_t id = id_at(piece.data() + i * type.num_bytes, type);
      if (id < 0 || id > std::numeric_limits<int32_t>::max()) {
        throw Error(ExitCode::kConfig, {file.path(), 0, 0},
                    fmt::format("the number at byte {} is {}, not a token id", begin_bytes + i * type.num_bytes, id));
      }
      const auto narrow = static_cast<int32_t>(id);
      std::memcpy(out.data() + begin + i * 4, &narrow, 4);
    }
    done += count;
  }
}

}  // namespace chassis
