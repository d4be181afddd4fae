// Runs the model on the rows so far, chooses a token of each, appends it, and so on.
#include "host/generate/generate.hpp"

#include <algorithm>
#include <span>

#include "host/base/batch_fields.hpp"
#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "host/service/rng.hpp"
#include "host/session/fields.hpp"

namespace chassis {
namespace {

// The fields of the rows, whose pieces are equally long.
Fields fields_of(const Program& program, std::span<const RowPiece> rows, Device device) {
  const NamedSizes sizes =
      largest_sizes(program, static_cast<int64_t>(rows.size()), static_cast<int64_t>(rows.front().ids.size()));
  Fields fields;
  for (const auto& [name, taken] : program.fields) {
    const BatchFieldSpec* spec = find_batch_field(name);
    if (spec == nullptr || !spec->in_generation) continue;
    HostField field(*spec, sizes);
    for (size_t row = 0; row < rows.size(); ++row) field.write(rows[row], static_cast<int64_t>(row), 0);
    fields[name] = to_tensor(field, device);
  }
  return fields;
}

// Those of the last position of a row.
std::vector<float> last_logits(const Tensor& logits, size_t row) {
  const int64_t vocab = logits.size(2), end = static_cast<int64_t>(row + 1) * logits.size(1) * vocab;
  std::vector<float> values(static_cast<size_t>(vocab));
  const int64_t sizes[] = {vocab};
  Tensor::borrow(values.data(), sizes, Dtype::f32).copy_from(logits.flat().narrow(0, end - vocab, vocab));
  return values;
}

// True if an op needs the whole row for each token.
bool warn_if_refused(Executor& executor) {
  const std::string op = executor.refusal_of_cache();
  if (op.empty()) return false;
  counted_warning("generation without a key-value cache",
                  "generation computes the whole row again for each token: op " + op +
                      " mixes the positions, or does not declare which dims it mixes");
  return true;
}

// The shortest row in which an op computes all positions otherwise: keys of a shorter row do not fit. 0: none.
int64_t first_long_position(Executor& executor) {
  int64_t first = 0;
  for (const auto& unit : executor.resolved(Purpose::kLogits).units)
    for (const Op& op : unit->block.ops)
      if (const int64_t from = op.changes_at_length(); from > 0) first = first == 0 ? from : std::min(first, from);
  return first;
}

}  // namespace

void CachedRow::forget() {
  ids_.clear();
  num_computed_ = 0;
  cache_.truncate(0);
}

size_t CachedRow::begin_with(const std::vector<int32_t>& row, int64_t capacity) {
  const auto differs = std::mismatch(ids_.begin(), ids_.end(), row.begin(), row.end()).first;
  const size_t same = std::min(static_cast<size_t>(differs - ids_.begin()), row.size() - 1);
  ids_.resize(same);
  cache_.truncate(static_cast<int64_t>(same));
  cache_.reserve(capacity);
  return same;
}

struct TextBatch::Text {
  TextRequest request;
  CachedRow own = {};
  std::vector<int32_t> row = {};  // the prompt and the tokens so far
  size_t num_seen = 0;            // positions of the row that the cache holds
  bool uses_cache = true;
  size_t first_long = 0;  // the shortest row in which an op computes all positions otherwise; 0: none
  Generated made = {};
  bool has_begun = false, has_ended = false;

  CachedRow& cached() { return request.cached != nullptr ? *request.cached : own; }
  bool is_long() const { return first_long > 0 && row.size() > first_long; }
  // Forgets the cached positions if an op would compute them otherwise in the row as it is now.
  void check_cache() {
    if (first_long == 0 || cached().num_computed() == 0) return;
    if ((cached().num_computed() > first_long) == is_long()) return;
    cached().forget();
    num_seen = 0;
  }
  void begin(Executor& executor) {
    has_begun = true;
    uses_cache = request.options.use_cache && !warn_if_refused(executor);
    if (!uses_cache) return;
    first_long = static_cast<size_t>(first_long_position(executor));
    check_cache();
    num_seen = cached().begin_with(row, room_for(static_cast<int64_t>(row.size())));
  }
  // The positions for which there should be room when a row of this length is computed. Room grows with the text, since
  // few texts have as many tokens as they may.
  int64_t room_for(int64_t length) const {
    constexpr int64_t kLeast = 64;
    const auto longest = static_cast<int64_t>(request.prompt.size()) + request.options.max_new_tokens;
    return std::min(longest, length + std::max(length, kLeast));
  }
  void make_room() {
    const auto length = static_cast<int64_t>(row.size());
    if (length > cached().cache().capacity()) cached().cache().reserve(room_for(length));
  }
  void take_token(const Tensor& logits, size_t row_of_logits);
  // The end of the part of the row that the next call computes. A long prompt takes several calls, so that other texts
  // and the caller do not wait for it, unless an op computes all positions of a long row otherwise.
  size_t piece_end() const {
    constexpr size_t kLargestPiece = 1024;
    return uses_cache && !is_long() ? std::min(row.size(), num_seen + kLargestPiece) : row.size();
  }
  RowPiece piece() const {
    return {.ids = std::span(row).subspan(num_seen, piece_end() - num_seen),
            .first_position = static_cast<int32_t>(num_seen)};
  }
  // Called with the logits of the piece's last position.
  void take(const Tensor& logits, size_t row_of_logits) {
    const size_t end = piece_end();
    if (uses_cache) {
      cached().append(std::span(row).first(end));
      num_seen = end;
    }
    if (end == row.size()) take_token(logits, row_of_logits);
  }
};

TextBatch::TextBatch() = default;
TextBatch::~TextBatch() = default;
TextBatch::TextBatch(TextBatch&&) noexcept = default;

void TextBatch::clear() { texts_.clear(); }

void TextBatch::add(TextRequest request) {
  if (request.prompt.empty())
    throw config_error("the prompt is empty").hint("give at least one token, for example --prompt \"The\"");
  auto text = std::make_unique<Text>(Text{.request = std::move(request)});
  text->row = text->request.prompt;
  text->has_ended = text->request.options.max_new_tokens <= 0;
  texts_.push_back(std::move(text));
}

void TextBatch::step(Executor& executor, Device device) {
  // A part of a prompt is a call of its own. The texts that need one position are computed together, except that those
  // in which an op computes long rows otherwise are apart from the short ones.
  std::vector<Text*> alone, together[2];
  for (const auto& text : texts_) {
    if (text->has_ended) continue;
    if (!text->has_begun) text->begin(executor);
    text->check_cache();
    if (text->uses_cache) text->make_room();
    if (text->uses_cache && text->row.size() == text->num_seen + 1)
      together[text->is_long() ? 1 : 0].push_back(text.get());
    else
      alone.push_back(text.get());
  }
  for (Text* text : alone) compute(executor, device, {&text, 1}, text->uses_cache);
  for (const std::vector<Text*>& texts : together)
    if (!texts.empty()) compute(executor, device, texts, true);
  // The callbacks may add texts.
  std::vector<std::unique_ptr<Text>> running, ended;
  for (auto& text : texts_) (text->has_ended ? ended : running).push_back(std::move(text));
  texts_ = std::move(running);
  for (const auto& text : ended)
    if (text->request.on_end) text->request.on_end(std::move(text->made));
}

void TextBatch::compute(Executor& executor, Device device, std::span<Text* const> texts, bool has_caches) {
  std::vector<RowPiece> pieces;
  std::vector<KeyValueCache*> caches;
  for (Text* text : texts) {
    pieces.push_back(text->piece());
    if (has_caches) caches.push_back(&text->cached().cache());
  }
  const Tensor logits = executor.logits(fields_of(executor.program(), pieces, device), caches, true);
  for (size_t row = 0; row < texts.size(); ++row) texts[row]->take(logits, row);
}

void TextBatch::Text::take_token(const Tensor& logits, size_t row_of_logits) {
  const GenerateOptions& options = request.options;
  float draw = 0.0f;
  random_uniform(options.seed, options.stream, row.size(), {&draw, 1});
  std::vector<float> scores = last_logits(logits, row_of_logits);
  made.num_masked += mask_padded_ids(scores, options.vocab_size);
  const int32_t id = choose_token(std::move(scores), options.sampling, row, draw);
  if (std::ranges::find(options.stop_ids, id) != options.stop_ids.end()) {
    made.finish = Finish::kStopId;
    has_ended = true;
    return;
  }
  row.push_back(id);
  made.ids.push_back(id);
  const bool goes_on = !request.on_token || request.on_token(id);
  if (!goes_on) made.finish = Finish::kStoppedByCaller;
  has_ended = !goes_on || static_cast<int64_t>(made.ids.size()) >= options.max_new_tokens;
}

Generated generate(Executor& executor, const std::vector<int32_t>& prompt, const GenerateOptions& options,
                   Device device, const std::function<bool(int32_t)>& on_token, CachedRow* cached) {
  Generated made;
  TextBatch batch;
  batch.add({.prompt = prompt,
             .options = options,
             .on_token = on_token,
             .on_end = [&](Generated text) { made = std::move(text); },
             .cached = cached});
  while (batch.num_texts() > 0) batch.step(executor, device);
  return made;
}

}  // namespace chassis
