// Chooses the chat template that `chassis init` names: the tokenizer's own if it can be trained with, else a built-in
// one. Rows that do not fit a usable template of the tokenizer are errors, not a reason to choose another.
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
  RowSample sample = {};  // rows of the first training set, with that template
};
// data.chat has the tokenizer's own template. Throws the error of encoding a row, with a hint that lists the built-in
// templates that fit all rows.
ChosenTemplate choose_template(const DataConfig& data, const Tokenizer& tokenizer);

}  // namespace chassis
