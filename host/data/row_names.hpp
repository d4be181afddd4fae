// The names of the keys of each format, which `columns` and `tags` of a set may replace.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/base/error.hpp"
#include "host/data/data_config.hpp"

namespace chassis {

// The keys that are read, by the names that this program uses: {"messages", "dialog"} if the user renamed it.
using KeyNames = std::vector<std::pair<std::string, std::string>>;

// The keys of a row, required ones first: "messages".
const std::vector<std::string_view>& column_names(DataFormat format);
// The keys inside a message, and the words for roles.
const std::vector<std::string_view>& tag_names(DataFormat format);
// Throws a config error without a position if `columns` or `tags` of the format have no such name, or if two names
// become one key.
void require_names(DataFormat format, std::string_view option, const std::map<std::string, std::string>& renamed);

// The keys of a row that a set reads: its columns, and other names in use for them ("chosen_response" for "chosen")
// unless the set renames the column. A name may occur several times.
KeyNames row_keys(DataFormat format, const std::map<std::string, std::string>& columns);

// `names` as the set calls them.
KeyNames renamed_keys(const std::vector<std::string_view>& names, const std::map<std::string, std::string>& renamed);

// The keys of the two answers of a pair. Rows that are scored are refused if they have one.
inline constexpr std::string_view kAnswersOfPair[] = {"chosen", "rejected", "chosen_response", "rejected_response"};

}  // namespace chassis
