// Reads the name of a format that the user gives outside of the configuration.
#include "host/data/data_config.hpp"

#include <fmt/format.h>

namespace chassis {

DataFormat data_format_from_text(std::string_view text) {
  if (const std::optional<DataFormat> format = choice_from<DataFormat>(text)) return *format;
  std::string known;
  for (const std::string_view name : kChoiceNames<DataFormat>)
    known += fmt::format("{}\"{}\"", known.empty() ? "" : ", ", name);
  throw config_error(fmt::format("format \"{}\" is not one of {}", text, known));
}

}  // namespace chassis
