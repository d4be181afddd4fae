// Rows with one answer, and for each of its tokens the likeliest tokens of a teacher with their log-probabilities: in
// lists of ids and of log-probabilities, or in the form that inference servers give.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "host/base/printable.hpp"
#include "host/data/prompt_parser.hpp"
#include "host/data/row_parsers.hpp"

namespace chassis {
namespace {

constexpr const char* kTeacherForm =
    R"(one list for each token: "target_token_ids": [[5, 9], …] with "target_logprobs": [[-0.1, -2.5], …], or )"
    R"("logprobs": [[{"token": "token_id:5", "logprob": -0.1}, …], …])";
// Probabilities may be rounded to slightly more than 1, and are added up from rounded logarithms.
constexpr double kMostTeacherLogp = 1e-3, kMostTeacherSum = 1.01;
// A logarithm of 0 as a number, which some servers write as a smaller one.
constexpr double kLeastTeacherLogp = -1e4;

class DistillationParser final : public JsonRowParser {
 public:
  DistillationParser(const DataSetConfig& config, int64_t vocab_size)
      : JsonRowParser(config),
        prompts_(config),
        vocab_size_(vocab_size > 0 ? vocab_size : std::numeric_limits<int32_t>::max()) {}

 private:
  Record read(const RowFields& row) override {
    DistilledRecord record;
    if (const std::optional<JsonElement> ids = row.find("input_ids")) {
      for (const std::string_view name : {"completion", "prompt", "messages", "conversations"})
        if (row.find(name))
          throw row.place().error(fmt::format("the row has both \"{}\" and \"{}\": give ids or texts",
                                              printable(row.path("input_ids")), printable(row.path(name))));
      record.answer = tokens_of(row, *ids, vocab_size_);
    } else {
      record.answer = prompts_.answered(row);
    }
    record.teacher = teacher(row);
    return record;
  }

  TeacherFacts teacher(const RowFields& row) const {
    const std::optional<JsonElement> objects = row.find("logprobs"), ids = row.find("target_token_ids"),
                                     logps = row.find("target_logprobs");
    if (objects && (ids || logps))
      throw row.place().error(fmt::format("the row has both \"{}\" and \"{}\"", printable(row.path("logprobs")),
                                          printable(row.path(ids ? "target_token_ids" : "target_logprobs"))));
    if (objects) return from_objects(row, *objects);
    if (ids && logps) return from_lists(row, *ids, *logps);
    if (!ids && !logps)
      throw row.place()
          .error(fmt::format("the row has neither \"{}\" nor \"{}\" of a teacher",
                             printable(row.path("target_token_ids")), printable(row.path("logprobs"))))
          .hint(kTeacherForm);
    const std::string_view has = ids ? "target_token_ids" : "target_logprobs",
                           lacks = ids ? "target_logprobs" : "target_token_ids";
    throw row.place()
        .error(fmt::format("the row has \"{}\", but no \"{}\"", printable(row.path(has)), printable(row.path(lacks))))
        .hint(kTeacherForm);
  }

  TeacherFacts from_lists(const RowFields& row, JsonElement ids, JsonElement logps) const {
    const RowPlace& place = row.place();
    const std::string id_path = row.path("target_token_ids"), logp_path = row.path("target_logprobs"),
                      mask_path = row.path("target_mask");
    const JsonArray id_lists = place.list(id_path, ids), logp_lists = place.list(logp_path, logps);
    std::optional<JsonArray> masks;
    if (const auto mask = row.find("target_mask")) masks = place.list(mask_path, *mask);
    require_size(place, logp_path, logp_lists.size(), id_path, id_lists.size());
    if (masks) require_size(place, mask_path, masks->size(), id_path, id_lists.size());
    TeacherFacts out;
    auto logp_list = logp_lists.begin();
    std::optional<JsonArray::iterator> mask_list;
    if (masks) mask_list = masks->begin();
    size_t position = 0;
    for (const JsonElement id_list : id_lists) {
      const std::string id_name = fmt::format("{}[{}]", id_path, position),
                        logp_name = fmt::format("{}[{}]", logp_path, position),
                        mask_name = fmt::format("{}[{}]", mask_path, position);
      const JsonArray position_ids = place.list(id_name, id_list), position_logps = place.list(logp_name, *logp_list);
      require_size(place, logp_name, position_logps.size(), id_name, position_ids.size());
      const std::vector<bool> taken = mask_list ? bits(place, mask_name, **mask_list, id_name, position_ids.size())
                                                : std::vector<bool>(position_ids.size(), true);
      const size_t first = out.ids.size();
      auto logp = position_logps.begin();
      size_t i = 0;
      for (const JsonElement id : position_ids) {
        if (taken[i]) {
          out.ids.push_back(id_of(place, fmt::format("{}[{}]", id_name, i), id));
          out.logps.push_back(logp_of(place, fmt::format("{}[{}]", logp_name, i), *logp));
        }
        ++i;
        ++logp;
      }
      finish_position(place, id_name, first, out);
      ++logp_list;
      if (mask_list) ++*mask_list;
      ++position;
    }
    return out;
  }

  TeacherFacts from_objects(const RowFields& row, JsonElement lists) const {
    static const KeyNames kKeys{
        {"id", "token_id"}, {"token", "token"}, {"logprob", "logprob"}, {"rank", "rank"}, {"bytes", "bytes"}};
    const RowPlace& place = row.place();
    const std::string path = row.path("logprobs");
    TeacherFacts out;
    for (const JsonElement list : place.list(path, lists)) {
      const std::string name = fmt::format("{}[{}]", path, out.counts.size());
      const size_t first = out.ids.size();
      for (const JsonElement item : place.list(name, list)) {
        const std::string entry = fmt::format("{}[{}]", name, out.ids.size() - first);
        if (!item.is_object()) throw place.type_error(entry, item, "an object").hint(kTeacherForm);
        const RowFields fields(place, place.object(entry, item), kKeys, entry + ".");
        const std::optional<JsonElement> id = fields.find("id"), token = fields.find("token"),
                                         logp = fields.find("logprob");
        if (!id && !token)
          throw place.error(fmt::format("\"{}\" has neither \"token_id\" nor \"token\"", printable(entry)))
              .hint(kTeacherForm);
        if (!logp)
          throw place.error(fmt::format("\"{}\" is missing", printable(fields.path("logprob")))).hint(kTeacherForm);
        out.ids.push_back(id ? id_of(place, fields.path("id"), *id) : id_of_token(place, fields.path("token"), *token));
        out.logps.push_back(logp_of(place, fields.path("logprob"), *logp));
      }
      finish_position(place, name, first, out);
    }
    return out;
  }

  static void require_size(const RowPlace& place, const std::string& path, size_t size, const std::string& other,
                           size_t expected) {
    if (size != expected)
      throw place.error(
          fmt::format("\"{}\" has {} entries, \"{}\" has {}", printable(path), size, printable(other), expected));
  }

  static std::vector<bool> bits(const RowPlace& place, const std::string& path, JsonElement list,
                                const std::string& other, size_t size) {
    std::vector<bool> out;
    for (const JsonElement item : place.list(path, list)) {
      bool is_set = false;
      double number = 0;
      if (item.get(is_set)) {
        if (item.get(number) || (number != 0 && number != 1))
          throw place.type_error(fmt::format("{}[{}]", path, out.size()), item, "0, 1, true or false");
        is_set = number == 1;
      }
      out.push_back(is_set);
    }
    require_size(place, path, out.size(), other, size);
    return out;
  }

  int32_t id_of(const RowPlace& place, const std::string& path, JsonElement value) const {
    int64_t id = 0;
    if (place.is_wide_integer(value) || value.get(id)) throw place.type_error(path, value, "an id of the vocabulary");
    return inside(place, path, id);
  }
  int32_t inside(const RowPlace& place, const std::string& path, int64_t id) const {
    if (id < 0 || id >= vocab_size_)
      throw place.error(fmt::format("\"{}\" is {}, the vocabulary has {} ids", printable(path), id, vocab_size_))
          .hint("the teacher must have the tokenizer of the model");
    return static_cast<int32_t>(id);
  }
  // "token_id:123": a text says little, since several ids may have the same.
  int32_t id_of_token(const RowPlace& place, const std::string& path, JsonElement value) const {
    constexpr std::string_view kPrefix = "token_id:";
    const std::string_view text = place.string(path, value);
    int64_t id = 0;
    const char* const begin = text.data() + std::min(kPrefix.size(), text.size());
    const auto [end, code] = std::from_chars(begin, text.data() + text.size(), id);
    if (!text.starts_with(kPrefix) || code != std::errc() || end != text.data() + text.size())
      throw place
          .error(
              fmt::format("\"{}\" is \"{}\", expected \"token_id:\" and an id", printable(path), printable(text, 40)))
          .hint("let the server return tokens as ids, or write \"token_id\"");
    return inside(place, path, id);
  }

  static float logp_of(const RowPlace& place, const std::string& path, JsonElement value) {
    if (value.is_string() && !place.is_wide_integer(value)) throw place.type_error(path, value, "a number");
    if (value.is_null())
      throw place.type_error(path, value, "a number").hint("leave the entry out, or mask it in \"target_mask\"");
    const double logp = place.number(path, value);
    if (!std::isfinite(logp)) throw place.type_error(path, value, "a finite number");
    if (logp > kMostTeacherLogp)
      throw place.error(fmt::format("\"{}\" is {}, and a log-probability is at most 0", printable(path), logp));
    return static_cast<float>(std::max(logp, kLeastTeacherLogp));
  }

  // Ends the entries of a position, which begin at `first`.
  static void finish_position(const RowPlace& place, const std::string& path, size_t first, TeacherFacts& out) {
    std::vector<int32_t> ids(out.ids.begin() + static_cast<ptrdiff_t>(first), out.ids.end());
    std::ranges::sort(ids);
    if (const auto twice = std::ranges::adjacent_find(ids); twice != ids.end())
      throw place.error(fmt::format("\"{}\" has the id {} twice", printable(path), *twice));
    double sum = 0;
    for (size_t i = first; i < out.logps.size(); ++i) sum += std::exp(static_cast<double>(out.logps[i]));
    if (sum > kMostTeacherSum)
      throw place
          .error(fmt::format("the probabilities of \"{}\" add up to {:.4f}, and those of tokens to at most 1",
                             printable(path), sum))
          .hint("write natural logarithms of probabilities over the whole vocabulary");
    out.counts.push_back(static_cast<uint32_t>(ids.size()));
  }

  PromptParser prompts_;
  int64_t vocab_size_;
};

}  // namespace

std::unique_ptr<RowParser> make_distillation_parser(const DataSetConfig& config, int64_t vocab_size) {
  return std::make_unique<DistillationParser>(config, vocab_size);
}

}  // namespace chassis
