// A hash of the content of a record, which decides whether it is trained or evaluated.
#pragma once

#include <cstdint>

#include "host/data/record.hpp"

namespace chassis {

// Equal for equal contents in other rows, files and formats of a file; independent of tokenizer and template.
uint64_t content_hash(const Record& record);
// The hash as a number in [0, 1).
double content_fraction(const Record& record);

}  // namespace chassis
