// Which chat template `chassis init` names: the tokenizer's own if it can be trained with, else a built-in one. Rows
// that do not fit a usable template of the tokenizer are errors, not a reason to leave it.
#pragma once

#include <string>

#include "host/data/data_config.hpp"
#include "host/data/row_sample.hpp"
#include "host/data/tokenizer.hpp"

namespace chassis {

struct ChosenTemplate {
  std::string name = {};  // empty: the tokenizer's own
  std::string why = {};
  ChatConfig chat = {};
  RowSample sample = {};  // of the first training set, with that template
};
// data.chat has the tokenizer's own template. Throws what encoding a row throws, with the built-in templates that take
// all rows as a hint.
ChosenTemplate choose_template(const DataConfig& data, const Tokenizer& tokenizer);

}  // namespace chassis
