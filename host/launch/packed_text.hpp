// Values in the store: several texts in one, and numbers. Every value is checked, since other programs may write there.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "host/base/error.hpp"

namespace chassis {

// Joins texts into one, each preceded by its length.
std::string pack(const std::vector<std::string>& texts);
// Splits a packed text. A malformed text or another number of parts is a communication error: any program that reaches
// the port can write to the store.
std::vector<std::string> unpack(const std::string& packed, std::optional<size_t> count = std::nullopt);
// A whole number from `min` to `max`; anything else is a communication error that names `what`.
int number_from_store(const std::string& text, int min, int max, const std::string& what);
// The same for an exit code of this program.
ExitCode exit_code_from_store(const std::string& text);

}  // namespace chassis
