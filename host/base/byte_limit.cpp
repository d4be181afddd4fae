// Rounded numbers may hide the difference.
#include "host/base/byte_limit.hpp"

#include "host/base/units.hpp"

namespace chassis {

std::pair<std::string, std::string> bytes_texts(uint64_t num_bytes, uint64_t limit) {
  std::pair<std::string, std::string> texts{bytes_text(num_bytes), bytes_text(limit)};
  if (num_bytes != limit && texts.first == texts.second)
    texts = {std::to_string(num_bytes) + " bytes", std::to_string(limit) + " bytes"};
  return texts;
}

}  // namespace chassis
