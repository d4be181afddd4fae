// A conversation is rendered once and tokenised once; a token is trained if all of its bytes are.
#include "host/data/record_encoder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>
#include <variant>

#include "host/base/json.hpp"
#include "host/base/printable.hpp"
#include "host/data/units.hpp"

namespace chassis {
namespace {

// A shorter text may be a part of what the template writes after an answer.
constexpr size_t kMinRunOn = 8;
constexpr size_t kMaxNamedRoles = 20, kMaxReasonBytes = 300;
constexpr int kEncoderVersion = 3;  // raised whenever equal records get other ids or labels
constexpr int kUnitVersion = 1;     // likewise, for documents with sequences

uint64_t num_targets(const Document& document) {
  if (document.ids.empty()) return 0;
  if (document.labels.empty()) return document.ids.size() - 1;
  const auto& labels = document.labels;
  return labels.size() - 1 - static_cast<uint64_t>(std::count(labels.begin() + 1, labels.end(), kIgnoreLabel));
}

void keep(Document& document, size_t begin, size_t end) {
  for (std::vector<int32_t>* values : {&document.ids, &document.labels}) {
    if (values->empty()) continue;
    values->erase(values->begin() + static_cast<int64_t>(end), values->end());
    values->erase(values->begin(), values->begin() + static_cast<int64_t>(begin));
  }
}

// For each message, the begin of the first span of later messages; the end of the text if there are none.
std::vector<uint64_t> begins_of_later(const ChatRecord& chat, const RenderedChat& rendered) {
  std::vector<uint64_t> begins(chat.messages.size(), rendered.text.size());
  for (const ChatSpan& span : rendered.spans)
    if (span.message > 0) begins[span.message - 1] = std::min(begins[span.message - 1], span.begin);
  for (size_t i = begins.size(); i-- > 1;) begins[i - 1] = std::min(begins[i - 1], begins[i]);
  return begins;
}

// The end of the last span of another message that ends at or before `byte`; 0 if there is none.
uint64_t end_of_others(const std::vector<ChatSpan>& spans, uint64_t message, uint64_t byte) {
  auto behind =
      std::partition_point(spans.begin(), spans.end(), [&](const ChatSpan& span) { return span.end <= byte; });
  while (behind != spans.begin() && std::prev(behind)->message == message) --behind;
  return behind == spans.begin() ? 0 : std::prev(behind)->end;
}

// All places of a part in a text, which may overlap.
std::vector<uint64_t> places_of(const std::string& text, const std::string& part) {
  std::vector<uint64_t> places;
  if (part.empty()) return places;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) places.push_back(at);
  return places;
}

// True if one of the ranges, which joined() made, begins after `begin` and before `end`.
bool begins_inside(const std::vector<ByteRange>& ranges, uint64_t begin, uint64_t end) {
  const auto next = std::upper_bound(ranges.begin(), ranges.end(), begin,
                                     [](uint64_t byte, const ByteRange& range) { return byte < range.begin; });
  return next != ranges.end() && next->begin < end;
}

bool is_silent(const Message& message) {
  const auto is_empty = [](const ContentPart& part) { return part.text.empty(); };
  return std::all_of(message.content.begin(), message.content.end(), is_empty) && message.reasoning.empty() &&
         message.tool_calls_json.empty();
}

// A refusal as a reason that many rows share: without the numbers of messages.
std::string reason_of(const Error& error) {
  std::string text;
  bool skips = false;
  for (const char c : error.message()) {
    const bool is_digit = c >= '0' && c <= '9';
    skips = is_digit && (skips || text.ends_with('[') || text.ends_with("message "));
    if (!skips) text += c;
  }
  return "refused: " + printable(text, kMaxReasonBytes);
}

// Roles that the program knows, and further ones that families of models use.
bool is_known_role(std::string_view role) {
  static const std::set<std::string_view> kRoles{"system",      "user",     "assistant",   "tool",   "developer",
                                                 "environment", "function", "observation", "ipython"};
  return kRoles.contains(role);
}

// The role that was meant by a word that differs in a letter or two; empty if none is near.
std::string_view meant_role(std::string_view word) {
  for (const std::string_view role : {"assistant", "system", "user", "tool"}) {
    // The numbers of letters that both words begin with and end with; the letters between them differ.
    const size_t common = std::min(word.size(), role.size());
    size_t front = 0, back = 0;
    while (front < common && word[front] == role[front]) ++front;
    while (back < common - front && word[word.size() - 1 - back] == role[role.size() - 1 - back]) ++back;
    if (std::max(word.size(), role.size()) - front - back <= role.size() / 4) return role;
  }
  return {};
}

std::string tags_of(std::string_view role, const std::string& word) {
  return fmt::format("tags = {{ {} = \"{}\" }}", role, printable(word, 40));
}

void count_role(std::map<std::string, uint64_t>& roles, const std::string& role) {
  const std::string name = printable(role, 40);
  ++roles[roles.size() < kMaxNamedRoles || roles.contains(name) ? name : "(others)"];
}

// Records that need an objective, in a task without one.
Error not_a_unit(const Record& record) {
  const auto error = [](const char* what, const char* task) {
    return config_error(fmt::format("{} cannot be trained without an objective", what))
        .hint(fmt::format("set train.task = {}", task));
  };
  if (std::holds_alternative<LabelledRecord>(record)) return error("a labelled answer", "\"preference\"");
  if (std::holds_alternative<ClassifiedRecord>(record)) return error("a row with a class", "\"classify\"");
  if (std::holds_alternative<RolloutsRecord>(record)) return error("a row of rollouts", "\"policy\"");
  if (std::holds_alternative<DistilledRecord>(record)) return error("a row of a teacher", "\"distill\"");
  return error("a preference pair",
               "\"preference\" or \"reward\"; to train the better answers alone, set format = \"messages\" and columns "
               "= { messages = \"chosen\" }");
}

}  // namespace

// The last label may be anything. If a token follows itself, its label is both its own id and the next one.
bool are_labels_shifted(std::span<const int32_t> ids, std::span<const int32_t> labels) {
  constexpr size_t kMinLabels = 2;  // one may match by chance
  size_t num_next = 0, num_other = 0;
  for (size_t i = 0; i + 1 < labels.size(); ++i) {
    if (labels[i] == kIgnoreLabel) continue;
    if (labels[i] != ids[i + 1]) return false;
    ++num_next;
    num_other += labels[i] != ids[i];
  }
  return num_next >= kMinLabels && num_other > 0;
}

EncodeOptions encode_options(const DataConfig& config) {
  return {.chat = config.chat,
          .supervised = config.supervised,
          .splits_documents = config.packing == Packing::kConcatSplit,
          .overflow = config.overflow,
          .skips_refused = config.skips_refused,
          .seq_len = config.seq_len,
          .vocab_size = config.vocab_size,
          .sequences = config.sequences};
}

bool EncodeOptions::cuts_documents() const {
  const bool rule = overflow == Overflow::kTruncate || overflow == Overflow::kTruncateLeftPrompt;
  return (supervised || sequences) && !splits_documents && seq_len > 0 && rule;
}

RecordEncoder::RecordEncoder(const Tokenizer* tokenizer, EncodeOptions options)
    : tokenizer_(tokenizer), options_(std::move(options)) {
  if (options_.sequences && options_.overflow == Overflow::kTruncate && !reads_whole_texts())
    throw config_error("data.overflow = \"truncate\" would cut the answers that the objective compares")
        .hint("set data.overflow to \"drop\" or \"error\", or to \"truncate_left_prompt\", which cuts prompts alone");
}

std::map<std::string, uint64_t> EncodeCounts::changes() const {
  std::map<std::string, uint64_t> changes;
  const auto add = [&](const char* what, uint64_t times) {
    if (times > 0) changes[what] = times;
  };
  // Without those that the next two entries report.
  add("tokens that lie partly in what is trained are masked",
      num_partly_inside - num_masked_beginnings - num_masked_completions);
  add("the first token of an answer is masked, since the template's header ends inside it, so the model will not learn "
      "how answers begin: end the header before its white space, or choose another data.template",
      num_masked_beginnings);
  add("the first token of a completion is masked, since it begins inside the prompt, so the model will not learn how "
      "completions begin: move white space at the end of prompts to the front of completions",
      num_masked_completions);
  add("rows longer than train.seq_len are cut", num_truncated);
  add("the template leaves out the reasoning of answers", num_lost_reasoning);
  add("answers are empty: only their end can be trained", num_empty_answers);
  add("the template leaves out the name of messages", num_hidden_names);
  add("the content of messages is null, which counts as absent: transformers writes \"None\" where a template prints "
      "it",
      num_null_contents);
  add("prompts are empty and the tokenizer adds no BOS: the first token of the completion is not trained",
      num_untrained_first);
  add("documents have no end: the tokenizer has no EOS (eos_token), so the model will not learn where texts end",
      num_without_end);
  add("rows have labels that are none of their own ids and all of the next ones: they were shifted beforehand, and are "
      "shifted again here; labels[t] belongs to ids[t]",
      num_shifted_labels);
  add("the two prompts of pairs have different tokens: an answer changes how the end of its prompt becomes tokens",
      num_other_prompts);
  add("answers do not end in a token that ends generation", num_open_ends);
  add("the log-probabilities of answers are not used: the objective does not need them", num_unused_logps);
  add(other_begin.c_str(), num_other_begins);
  for (const auto& [role, times] : hidden_roles)
    changes[fmt::format("the template writes messages of the role \"{}\" as it writes those of others", role)] = times;
  for (const auto& [role, times] : other_roles) {
    const std::string_view meant = meant_role(role);
    changes[fmt::format("messages have the role \"{}\", which the template writes as it is, and which is not trained{}",
                        role, meant.empty() ? "" : "; if it is a misspelling: " + tags_of(meant, role))] = times;
  }
  for (const auto& [token, times] : spelled)
    changes[fmt::format("contents of messages spell {}, which becomes that special token", token)] = times;
  return changes;
}

bool RecordEncoder::encode(const Record& record, const SourcePosition& where, Document& document) {
  document.ids.clear();
  document.labels.clear();
  document.sequences.clear();
  partly_inside_.clear();
  num_masked_beginnings_ = num_masked_completions_ = num_other_prompts_ = num_open_ends_ = 0;
  drop_reason_.clear();
  if (options_.sequences) require_unit(record, where);
  try {
    encode_any(record, document);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kStopped || !error.where().file.empty()) throw;
    if (!is_skipped(record, error)) throw Error(error.code(), where, error.message()).hint(error.hint_text());
    document.ids.clear();
    document.labels.clear();
    document.sequences.clear();
    partly_inside_.clear();
    drop_reason_ = reason_of(error);
  }
  ++counts_.num_rows;
  if (document.ids.empty() && drop_reason_.empty()) return true;
  counts_.longest = std::max<uint64_t>(counts_.longest, document.ids.size());
  const uint64_t num_partly_inside = partly_inside_.size();
  if (options_.sequences) {
    if (drop_reason_.empty()) fit_unit(document);
  } else if (options_.supervised && drop_reason_.empty()) {
    if (num_targets(document) == 0)
      drop_reason_ = "no token is trained";
    else
      fit(document);
  }
  if (!drop_reason_.empty()) {
    ++counts_.dropped[drop_reason_];
    return false;
  }
  counts_.num_partly_inside += num_partly_inside;
  counts_.num_masked_beginnings += num_masked_beginnings_;
  counts_.num_masked_completions += num_masked_completions_;
  counts_.num_other_prompts += num_other_prompts_;
  counts_.num_open_ends += num_open_ends_;
  counts_.num_tokens += document.ids.size();
  counts_.num_trained_tokens += num_targets(document);
  return true;
}

void RecordEncoder::encode_any(const Record& record, Document& document) {
  if (const auto* tokens = std::get_if<TokensRecord>(&record)) {  // the reader has checked them
    document.ids = tokens->ids;
    document.labels = tokens->labels;
    if (are_labels_shifted(tokens->ids, tokens->labels)) ++counts_.num_shifted_labels;
    return;
  }
  if (options_.sequences)
    encode_unit(record, document);
  else if (const auto* text = std::get_if<TextRecord>(&record))
    encode_text(*text, document);
  else if (const auto* segments = std::get_if<SegmentsRecord>(&record))
    encode_segments(*segments, document);
  else if (const auto* chat = std::get_if<ChatRecord>(&record))
    encode_chat(*chat, document);
  else if (const auto* completion = std::get_if<CompletionRecord>(&record))
    encode_completion(*completion, document);
  else
    throw not_a_unit(record);
  require_ids_in_vocabulary(document);
}

void RecordEncoder::encode_text(const TextRecord& record, Document& document) {
  std::vector<int32_t>& ids = document.ids;
  if (record.text.empty()) return;
  tokenizer().encode(record.text, ids);
  const int32_t bos = tokenizer().bos_id(), eos = tokenizer().eos_id();
  if (tokenizer().adds_bos() && bos >= 0 && (ids.empty() || ids.front() != bos)) ids.insert(ids.begin(), bos);
  if (eos >= 0 && (ids.empty() || ids.back() != eos)) ids.push_back(eos);
  if (eos < 0 && !reads_whole_texts()) ++counts_.num_without_end;
}

void RecordEncoder::encode_segments(const SegmentsRecord& record, Document& document) {
  std::string text;
  std::vector<ByteRange> trained;
  for (const SegmentsRecord::Segment& segment : record.segments) {
    if (segment.trained) trained.push_back({text.size(), text.size() + segment.text.size()});
    text += segment.text;
  }
  set_labels(tokenizer().encode_with_offsets(text), joined(std::move(trained)), document);
}

void RecordEncoder::encode_completion(const CompletionRecord& record, Document& document) {
  const int32_t bos = tokenizer().bos_id(), eos = tokenizer().eos_id();
  if (eos < 0)
    throw config_error("the tokenizer has no EOS that could end a completion: the model will not learn to stop")
        .hint("use format = \"segments\", whose text is taken as it is, or another tokenizer");
  const std::string text = record.prompt + record.completion;
  Encoding encoding = tokenizer().encode_with_offsets(text);
  if (tokenizer().adds_bos() && bos >= 0 && (encoding.ids.empty() || encoding.ids.front() != bos)) {
    encoding.ids.insert(encoding.ids.begin(), bos);
    encoding.begin.insert(encoding.begin.begin(), 0);
    encoding.end.insert(encoding.end.begin(), 0);
  }
  const uint64_t begin = options_.chat.train_on_prompt ? 0 : record.prompt.size();
  set_labels(encoding, {{begin, text.size()}}, document);
  num_masked_completions_ = partly_inside_.size();  // only the first token can lie in both
  if (!document.labels.empty() && !options_.chat.train_on_prompt && document.ids.front() == bos)
    document.labels.front() = kIgnoreLabel;  // BOS covers no byte, so an empty prompt would not mask it
  if (record.completion.empty()) ++counts_.num_empty_answers;
  if (!document.labels.empty() && begin == 0 && record.prompt.empty() && document.labels.front() != kIgnoreLabel)
    ++counts_.num_untrained_first;
  if (document.ids.empty() || document.ids.back() != eos) {
    document.ids.push_back(eos);
    document.labels.push_back(eos);
  }
  require_one_bos(document);
  if (options_.supervised) require_an_answer(document);
}

void RecordEncoder::encode_chat(const ChatRecord& chat, Document& document) {
  if (!options_.supervised && !options_.sequences)
    throw config_error("a conversation can be trained only with train.task = \"sft\"");
  if (chat.messages.empty()) return;  // counted as a row without tokens
  renderer();                         // a template that fits no conversation is an error of the configuration
  encode_shown(chat, document);
}

void RecordEncoder::encode_shown(const ChatRecord& chat, Document& document) {
  const bool is_masked = reads_whole_texts();
  const bool spans = !is_masked && needs_spans(chat, options_.chat);
  RenderedChat rendered;
  try {
    rendered = renderer().render(chat, spans);
  } catch (const ChatSpansUnproven& error) {
    std::string names;
    for (const std::string& name : options_.chat.fitting_slots) names += fmt::format(" \"{}\"", name);
    throw config_error(
        fmt::format("it is not known which bytes of {} are the assistant's: {}", renderer().name(), error.message()))
        .hint(fmt::format("set data.template to a slot template:{} fit this tokenizer",
                          names.empty() ? std::string(" none of the built-in ones, but your own file may") : names));
  }
  require_all_shown(chat, rendered.text);
  const Encoding encoding = tokenizer().encode_with_offsets(rendered.text);
  std::vector<ByteRange> trained;
  if (spans)
    trained = trained_ranges(chat, rendered, encoding);
  else if (!is_masked)
    trained = {{0, rendered.text.size()}};
  if (options_.chat.train_on_prompt && learns_to_stop()) require_last_stop(chat, encoding);
  check_reasoning(chat, rendered, spans || !renderer_->is_jinja());
  count_contents(chat, encoding);
  for (const Message& message : chat.messages)
    if (!message.name.empty() && rendered.text.find(message.name) == std::string::npos) ++counts_.num_hidden_names;
  if (renderer_->is_jinja())
    counts_.num_null_contents +=
        static_cast<uint64_t>(std::ranges::count(chat.messages, true, &Message::content_is_null));
  count_roles(chat);
  set_labels(encoding, trained, document);
  for (const size_t i : partly_inside_)
    num_masked_beginnings_ += begins_inside(trained, encoding.begin[i], encoding.end[i]);
  require_one_bos(document);
  if (!options_.sequences) require_an_answer(document);
}

// Refuses parts that a Jinja template does not show; reasoning that it leaves out, and roles, are only counted.
void RecordEncoder::require_all_shown(const ChatRecord& chat, const std::string& text) {
  if (!coverage_) return;
  const bool changes = renderer_->changes(chat);
  ChatRecord prepared;
  if (changes) prepared = renderer_->prepared(chat);
  const ChatRecord& shown = changes ? prepared : chat;
  const size_t num_added = changes && renderer_->adds_system(chat) ? 1 : 0;
  for (const Omission& omission : coverage_->omissions(shown, text)) {
    if (omission.what == Omission::What::kRole)
      count_role(counts_.hidden_roles, shown.messages[omission.message].role);
    else if (omission.what == Omission::What::kReasoning)
      lose_reasoning(omission.message - num_added);
    else if (omission.message < num_added && omission.what != Omission::What::kTools &&
             omission.what != Omission::What::kPythonTools)
      throw config_error(fmt::format("{} does not show the system message of data.default_system", renderer_->name()))
          .hint(other_templates("leave it out, or choose a data.template that shows it"));
    else
      throw not_shown(chat, {omission.what, omission.message - std::min(num_added, omission.message)});
  }
}

Error RecordEncoder::not_shown(const ChatRecord& chat, const Omission& omission) const {
  using What = Omission::What;
  const std::string& name = renderer_->name();
  const size_t i = omission.message;
  const std::string& role = chat.messages[i].role;
  const auto error = [](std::string message, const std::string& hint) {
    return Error(config_error(std::move(message)).hint(hint + "; data.on_refused = \"skip\" leaves out such rows"));
  };
  if (omission.what == What::kTools)
    return error(
        fmt::format("the row offers tools, and {} does not show them", name),
        other_templates("choose a data.template with tools, or leave them out by columns = { tools = \"-\" } in "
                        "the table of the data set"));
  if (omission.what == What::kToolCalls || omission.what == What::kArguments)
    return error(fmt::format("{} does not show the {}tool calls of messages[{}]", name,
                             omission.what == What::kArguments ? "arguments of the " : "", i),
                 other_templates(chat.messages[i].text().empty()
                                     ? "choose a data.template with tool calls"
                                     : "choose a data.template with tool calls, or try the calls in a message of their "
                                       "own"));
  if (omission.what == What::kPython)
    return error(fmt::format("{} writes the tool calls of messages[{}] as Python spells them, such as {{'key': "
                             "'value'}}, and not as JSON",
                             name, i),
                 other_templates("let the template write `arguments | tojson`, or choose another data.template"));
  if (omission.what == What::kPythonTools)
    return error(
        fmt::format("{} writes the tools of the row as Python spells them, such as {{'key': 'value'}}, and not "
                    "as JSON",
                    name),
        other_templates("let the template write `tools | tojson`, or choose another data.template"));
  if (omission.what == What::kPartOfContent)
    return error(fmt::format("{} shows only a part of the content of messages[{}] ({})", name, i, printable(role, 40)),
                 other_templates("choose another data.template"));
  if (!is_known_role(role)) {
    const std::string_view meant = meant_role(role);
    const std::string tags =
        meant.empty() ? fmt::format("{} or {}, whichever it is,", tags_of("assistant", role), tags_of("user", role))
                      : tags_of(meant, role);
    return error(fmt::format("messages[{}] has the role \"{}\", and {} does not show it", i, printable(role, 40), name),
                 fmt::format("in the table of the data set, {} gives it a role that the template knows", tags));
  }
  if (role == "assistant" && !chat.messages[i].tool_calls_json.empty())
    return error(fmt::format("{} does not show the content of messages[{}], which accompanies tool calls", name, i),
                 other_templates("give the content a message of its own, or choose a data.template that shows both"));
  return error(fmt::format("{} does not show messages[{}] ({})", name, i, role),
               other_templates(role == "system" ? "leave system messages out of the data, or choose a data.template "
                                                  "that shows them"
                               : role == "developer" ? "tags = { system = \"developer\" } makes it a system message"
                                                     : "choose a data.template that shows it"));
}

std::string RecordEncoder::other_templates(const char* what) const {
  std::string names;
  for (const std::string& name : options_.chat.fitting_slots)
    if (name != "plain") names += fmt::format("{} {}", names.empty() ? ":" : ",", name);
  return fmt::format("{}{}", what, names.empty() ? "" : "; built-in templates whose tokens this tokenizer has" + names);
}

void RecordEncoder::lose_reasoning(size_t message) {
  if (options_.chat.reasoning == Reasoning::kStrip) return;
  if (options_.chat.reasoning == Reasoning::kKeep)
    throw config_error(fmt::format("{} leaves out the reasoning of messages[{}], and data.reasoning = \"keep\"",
                                   renderer_->name(), message))
        .hint("data.template = \"chatml\" keeps it; data.reasoning = \"template\" accepts what the template does");
  ++counts_.num_lost_reasoning;
}

void RecordEncoder::count_roles(const ChatRecord& chat) {
  const std::vector<std::string>& trained = options_.chat.roles_to_train;
  for (const Message& message : chat.messages) {
    if (is_known_role(message.role) || options_.chat.train_on_prompt || message.train) continue;
    if (std::find(trained.begin(), trained.end(), message.role) != trained.end()) continue;
    count_role(counts_.other_roles, message.role);
  }
}

// A row whose trained tokens only end an answer teaches the model to answer nothing.
void RecordEncoder::require_an_answer(const Document& document) const {
  int32_t end = -1;
  if (!is_nothing_but_an_end(document, end)) return;
  throw config_error(fmt::format("nothing of the row is trained but {}, which ends an answer: the model would learn to "
                                 "answer nothing",
                                 token_text(end)))
      .hint("give the answer a text, or leave the row out; data.on_refused = \"skip\" leaves out all such rows");
}

bool RecordEncoder::is_nothing_but_an_end(const Document& document, int32_t& end) const {
  constexpr uint64_t kMostTokensOfAnEnd = 4;
  if (document.labels.empty() || num_targets(document) == 0 || num_targets(document) > kMostTokensOfAnEnd) return false;
  std::vector<int32_t> others;
  for (size_t i = 1; i < document.ids.size(); ++i) {
    const int32_t id = document.labels[i];
    if (id == kIgnoreLabel) continue;
    if (id == tokenizer().eos_id() || (renderer_ && is_stop(id)))
      end = id;
    else
      others.push_back(id);
  }
  if (end < 0) return false;
  const std::string text = others.empty() ? "" : tokenizer().decode(others, true);
  return text.find_first_not_of(" \t\r\n") == std::string::npos;
}

bool RecordEncoder::is_skipped(const Record& record, const Error& error) const {
  if (!options_.skips_refused || error.code() != ExitCode::kConfig) return false;
  if (options_.sequences) return renderer_ != nullptr;
  return (std::holds_alternative<ChatRecord>(record) && renderer_) || std::holds_alternative<CompletionRecord>(record);
}

// Templates that end the generation prompt in a tag such as <think> may leave it out of a row.
void RecordEncoder::count_begin(const RenderedChat& rendered, uint64_t begin) {
  if (renderer_->other_begin().empty()) return;
  const std::string& prompt = renderer_->generation_prompt();
  const size_t at = rendered.text.rfind(prompt, begin);
  if (at != std::string::npos && at + prompt.size() >= begin) return;
  ++counts_.num_other_begins;
  counts_.other_begin = fmt::format(
      "answers do not begin where generation begins: the generation prompt is \"{}\", and a row has \"{}\" in its "
      "place",
      printable(prompt, 120), printable(renderer_->other_begin(), 120));
}

std::vector<ByteRange> RecordEncoder::trained_ranges(const ChatRecord& chat, const RenderedChat& rendered,
                                                     const Encoding& encoding) {
  std::vector<ByteRange> ranges;
  const std::vector<uint64_t> limits = begins_of_later(chat, rendered);
  const TurnPlaces places = turn_places(rendered, encoding);
  uint64_t done = 0;  // with train_on_prompt: everything before it is decided
  for (MessageMask& mask : mask_messages(chat, rendered, options_.chat)) {
    MessageMask::Piece& first = mask.pieces.front();
    const bool whole = options_.chat.train_on_prompt;
    if (!mask.is_generation) {
      const bool is_answer = chat.messages[mask.message].role == "assistant";
      if (is_answer) first.begin = begin_of_answer(rendered, encoding, places, mask);
      if (is_answer && first.trained) count_begin(rendered, first.begin);
      // The end of its turn is trained or masked like its last piece.
      if (is_answer || mask.pieces.back().trained || whole)
        mask.pieces.back().end = end_of_turn(chat, rendered, encoding, mask, limits[mask.message]);
    } else if (mask.pieces.back().trained) {
      if (learns_to_stop()) require_stop_inside(encoding, mask);
      count_begin(rendered, first.begin);
    }
    if (whole) ranges.push_back({done, mask.pieces.front().begin});
    for (const MessageMask::Piece& piece : mask.pieces)
      if (piece.trained) ranges.push_back({piece.begin, piece.end});
    done = mask.pieces.back().end;
  }
  if (options_.chat.train_on_prompt) ranges.push_back({done, rendered.text.size()});
  return joined(std::move(ranges));
}

// A generation prompt that ends in <think> reaches into an answer whose content begins with that tag: the model never
// writes it. Returns the first byte of the piece that is the model's, or 0 if the prompt does not reach into it.
uint64_t RecordEncoder::end_of_prompt_inside(const RenderedChat& rendered, const Encoding& encoding,
                                             const MessageMask::Piece& piece) const {
  const std::string& prompt = renderer_->generation_prompt();
  if (prompt.empty()) return 0;
  // It begins before the piece and ends in it, so it lies in this window.
  const uint64_t reach = prompt.size() - 1, from = piece.begin - std::min<uint64_t>(piece.begin, reach);
  const size_t at = std::string_view(rendered.text).substr(from, piece.begin + reach - from).rfind(prompt);
  if (at == std::string_view::npos) return 0;
  const uint64_t end = from + at + prompt.size();
  if (end >= piece.end) return 0;
  return std::ranges::binary_search(encoding.begin, end) ? end : 0;  // not inside a token
}

// Places that are searched for every answer, found once for the row.
RecordEncoder::TurnPlaces RecordEncoder::turn_places(const RenderedChat& rendered, const Encoding& encoding) const {
  TurnPlaces places{places_of(rendered.text, renderer_->generation_prompt()), {}};
  for (size_t i = 0; i < encoding.ids.size(); ++i)
    if (encoding.begin[i] < encoding.end[i] && is_special(encoding.ids[i])) places.specials.push_back(i);
  return places;
}

// The header of a turn is what the template writes when an answer is to be generated; everything after it, such as the
// tag before reasoning, is for the model to write.
uint64_t RecordEncoder::begin_of_answer(const RenderedChat& rendered, const Encoding& encoding,
                                        const TurnPlaces& places, const MessageMask& mask) const {
  const uint64_t leaf = mask.pieces.front().begin;
  const std::string& header = renderer_->generation_prompt();
  uint64_t begin = leaf;
  if (const uint64_t own = end_of_prompt_inside(rendered, encoding, mask.pieces.front()); own > leaf) return own;
  if (!header.empty()) {
    const auto after =
        std::ranges::upper_bound(places.headers, leaf, {}, [&](uint64_t at) { return at + header.size(); });
    if (after == places.headers.begin()) return leaf;
    begin = *std::prev(after) + header.size();
  } else {  // a template whose user turns end where answers begin: spaces in front of an answer are part of it
    const uint64_t limit = end_of_others(rendered.spans, mask.message, leaf);
    while (begin > limit && rendered.text[begin - 1] == ' ') --begin;
    // A slot template shows where the content before it ends; with Jinja, only a special token does.
    if (!renderer_->is_jinja()) return begin;
  }
  if (begin == leaf) return leaf;
  const auto first = std::lower_bound(encoding.begin.begin(), encoding.begin.end(), begin) - encoding.begin.begin();
  const auto i = static_cast<size_t>(first);
  const auto special = std::ranges::lower_bound(places.specials, i);
  const bool follows_special = special != places.specials.begin() && *std::prev(special) + 1 == i;
  if (header.empty() && (!follows_special || encoding.end[i - 1] != begin)) return leaf;
  const bool has_special = special != places.specials.end() && encoding.begin[*special] < leaf;
  return has_special ? leaf : begin;  // a special token shows that the header was another turn's
}

// The end of the first special token after the last leaf of a turn.
uint64_t RecordEncoder::end_of_turn(const ChatRecord& chat, const RenderedChat& rendered, const Encoding& encoding,
                                    const MessageMask& mask, uint64_t limit) const {
  const uint64_t leaf = mask.pieces.back().end;
  const bool is_answer = chat.messages[mask.message].role == "assistant";
  const bool must_stop = is_answer && mask.pieces.back().trained && learns_to_stop();
  const auto first = std::lower_bound(encoding.begin.begin(), encoding.begin.end(), leaf) - encoding.begin.begin();
  for (auto i = static_cast<size_t>(first); i < encoding.ids.size() && encoding.end[i] <= limit; ++i) {
    if (!is_special(encoding.ids[i])) continue;
    // Without a token of its own, the turn would run on into the next message.
    const std::string_view between = std::string_view(rendered.text).substr(leaf, encoding.begin[i] - leaf);
    const std::string next = mask.message + 1 < chat.messages.size() ? chat.messages[mask.message + 1].text() : "";
    if (next.size() >= kMinRunOn && between.find(next) != std::string_view::npos) break;
    if (is_stop(encoding.ids[i])) return encoding.end[i];
    if (must_stop) throw no_stop(mask.message, encoding.ids[i]);
    return leaf;
  }
  if (must_stop) throw no_stop(mask.message, -1);
  return leaf;
}

void RecordEncoder::require_stop_inside(const Encoding& encoding, const MessageMask& mask) const {
  const uint64_t begin = mask.pieces.front().begin, end = mask.pieces.back().end;
  int32_t last = -1;
  const auto first = std::lower_bound(encoding.begin.begin(), encoding.begin.end(), begin) - encoding.begin.begin();
  for (auto i = static_cast<size_t>(first); i < encoding.ids.size() && encoding.begin[i] <= end; ++i)
    if (encoding.end[i] <= end && is_special(encoding.ids[i])) last = encoding.ids[i];
  if (last < 0)
    throw config_error(fmt::format("messages[{}]: the {{% generation %}} block of {} has no token that ends the turn: "
                                   "the model will not learn to stop",
                                   mask.message, renderer_->name()))
        .hint("move {% endgeneration %} after that token, or set data.template to a slot template");
  if (!is_stop(last)) throw no_stop(mask.message, last);
}

void RecordEncoder::require_last_stop(const ChatRecord& chat, const Encoding& encoding) const {
  if (chat.messages.empty() || chat.messages.back().role != "assistant") return;
  for (size_t i = encoding.ids.size(); i-- > 0;) {
    if (!is_special(encoding.ids[i])) continue;
    if (is_stop(encoding.ids[i])) return;
    throw no_stop(chat.messages.size() - 1, encoding.ids[i]);
  }
  throw no_stop(chat.messages.size() - 1, -1);
}

Error RecordEncoder::no_stop(size_t message, int32_t id) const {
  std::string stops;
  for (const int32_t stop : renderer_->stop_ids()) stops += (stops.empty() ? "" : ", ") + token_text(stop);
  if (stops.empty()) stops = "none: the tokenizer has no EOS";
  const std::string end = id < 0 ? "does not end in a special token" : "ends in " + token_text(id);
  Error error =
      config_error(fmt::format("the model will not learn to stop: in {}, the turn of messages[{}] {}, but "
                               "generation stops at {}",
                               renderer_->name(), message, end, stops));
  if (id >= 0)
    error.hint(
        fmt::format("add {} to eos_token_id in generation_config.json of the model, or choose a data.template "
                    "whose turns end in one of these tokens",
                    id));
  else
    error.hint("choose a data.template whose turns end in one of these tokens");
  return error;
}

// Without spans, as for rows that are trained whole, reasoning counts as shown if the text holds it.
void RecordEncoder::check_reasoning(const ChatRecord& chat, const RenderedChat& rendered, bool knows_spans) {
  std::vector<std::vector<ChatSpan>> spans(chat.messages.size());
  for (const ChatSpan& span : rendered.spans)
    if (!chat.messages[span.message].reasoning.empty()) spans[span.message].push_back(span);
  size_t searched = 0;  // most texts follow each other
  const auto is_in_text = [&](const std::string& text) {
    size_t at = rendered.text.find(text, searched);
    if (at == std::string::npos) at = rendered.text.find(text);
    if (at != std::string::npos) searched = at + text.size();
    return at != std::string::npos;
  };
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    const Message& message = chat.messages[i];
    if (message.reasoning.empty()) continue;
    const size_t first = message.reasoning.find_first_not_of('\n'), last = message.reasoning.find_last_not_of('\n');
    if (first == std::string::npos) continue;
    const std::string text = message.reasoning.substr(first, last - first + 1);
    const bool is_shown = std::any_of(spans[i].begin(), spans[i].end(), [&](const ChatSpan& span) {
      const std::string_view shown = std::string_view(rendered.text).substr(span.begin, span.end - span.begin);
      return span.leaf == ChatLeaf::kReasoning || shown.find(text) != std::string_view::npos;
    });
    const bool has_spans = message.role == "assistant" && knows_spans;
    if (!is_shown && (has_spans || !is_in_text(text))) lose_reasoning(i);
  }
}

void RecordEncoder::count_contents(const ChatRecord& chat, const Encoding& encoding) {
  // Other rows with an empty answer are dropped, or nothing of them is trained.
  const bool trains_ends = !options_.sequences || options_.sequences->units == CHASSIS_OBJECTIVE_ROLLOUTS;
  for (const Message& message : chat.messages)
    if (message.role == "assistant" && message.train.value_or(true) && is_silent(message) && trains_ends)
      ++counts_.num_empty_answers;
  // Only special tokens of this row can be spelled in it, and they are few.
  std::set<int32_t> specials;
  for (const int32_t id : encoding.ids)
    if (is_special(id)) specials.insert(id);
  for (const int32_t id : specials) {
    const TokenText token = tokenizer().token(id);
    if (!token.special || token.text.empty()) continue;
    for (const Message& message : chat.messages)
      for (const ContentPart& part : message.content)
        for (size_t at = part.text.find(token.text); at != std::string::npos;
             at = part.text.find(token.text, at + token.text.size()))
          ++counts_.spelled[printable(token.text, 60)];
  }
}

void RecordEncoder::set_labels(const Encoding& encoding, const std::vector<ByteRange>& trained, Document& document) {
  const std::vector<bool> inside = tokens_inside(encoding, trained, partly_inside_);
  document.ids = encoding.ids;
  document.labels.resize(encoding.ids.size());
  for (size_t i = 0; i < inside.size(); ++i) document.labels[i] = inside[i] ? encoding.ids[i] : kIgnoreLabel;
}

void RecordEncoder::require_one_bos(const Document& document) const {
  const int32_t bos = tokenizer().bos_id();
  // A tokenizer whose BOS is its EOS may begin with an empty document.
  if (bos < 0 || document.ids.size() < 2 || document.ids[0] != bos || document.ids[1] != bos) return;
  throw config_error(fmt::format("the row begins with {} twice", token_text(bos)))
      .hint("the template writes it, so the data must not; or remove it from the template");
}

void RecordEncoder::require_ids_in_vocabulary(const Document& document) const {
  const int64_t limit = options_.vocab_size > 0 ? options_.vocab_size : tokenizer().vocab_size();
  for (const int32_t id : document.ids) {
    if (id >= 0 && id < limit) continue;
    throw config_error(fmt::format("the row needs the token {}, and the vocabulary has {} ids", token_text(id), limit))
        .hint("the tokenizer does not belong to this model, or vocab_size is too small");
  }
}

// Cuts a document that is too long, if the overflow rule says so: afterwards it may have nothing to train.
void RecordEncoder::fit(Document& document) {
  const size_t size = document.ids.size(), limit = static_cast<size_t>(options_.seq_len);
  if (!options_.cuts_documents() || size <= limit) return;
  if (options_.overflow == Overflow::kTruncate) {
    keep(document, 0, limit);
    if (num_targets(document) == 0) drop_reason_ = "no token is trained in the first train.seq_len tokens";
  } else {
    // The first trained token needs one before it that predicts it.
    size_t first = 1;
    while (!document.labels.empty() && document.labels[first] == kIgnoreLabel) ++first;
    if (size - limit < first)
      keep(document, size - limit, size);
    else
      drop_reason_ = kNoPromptToCut;
  }
  partly_inside_.clear();  // their places have changed
  if (drop_reason_.empty()) ++counts_.num_truncated;
}

const Tokenizer& RecordEncoder::tokenizer() const {
  if (tokenizer_ == nullptr)
    throw config_error("the row has text, and there is no tokenizer").hint("set tokenizer.plugin or tokenizer.path");
  return *tokenizer_;
}

ChatRenderer& RecordEncoder::renderer() {
  if (!renderer_) {
    renderer_ = std::make_unique<ChatRenderer>(tokenizer(), options_.chat);
    if (renderer_->is_jinja()) coverage_ = std::make_unique<ChatCoverage>(*renderer_);
  }
  return *renderer_;
}

bool RecordEncoder::is_special(int32_t id) const {
  if (id < 0) return false;
  const auto index = static_cast<size_t>(id);
  if (index >= special_.size())
    special_.resize(std::max<size_t>(index + 1, static_cast<size_t>(tokenizer().vocab_size())), -1);
  if (special_[index] < 0) special_[index] = tokenizer().token(id).special || is_stop(id);
  return special_[index] > 0;
}

bool RecordEncoder::is_stop(int32_t id) const {
  const std::vector<int32_t>& stops = renderer_->stop_ids();
  return std::find(stops.begin(), stops.end(), id) != stops.end();
}

std::string RecordEncoder::token_text(int32_t id) const {
  if (id >= tokenizer().vocab_size()) return fmt::format("id {}", id);
  return fmt::format("{} (id {})", printable(tokenizer().token(id).text, 60), id);
}

std::string RecordEncoder::fingerprint() {
  if (!options_.supervised && !options_.sequences) return "";
  Json key;
  key["version"] = kEncoderVersion;
  key["train_on_prompt"] = options_.chat.train_on_prompt;
  key["last_turn_only"] = options_.chat.last_turn_only;
  key["roles_to_train"] = options_.chat.roles_to_train;
  if (options_.skips_refused) key["on_refused"] = "skip";
  if (options_.sequences) {
    const SequenceNeeds& needs = *options_.sequences;
    key["sequences"] = {{"version", kUnitVersion},
                        {"units", needs.units},
                        {"mismatches", needs.mismatches},
                        {"old_logps", needs.old_logps},
                        {"num_targets", needs.num_targets},
                        {"num_classes", needs.num_classes},
                        {"scores", needs.scores}};
    if (needs.top_k > 0) key["sequences"]["top_k"] = needs.top_k;
  }
  if (options_.cuts_documents()) {
    key["overflow"] = to_text(options_.overflow);
    key["seq_len"] = options_.seq_len;
  }
  if (tokenizer_) {
    key["adds_bos"] = tokenizer_->adds_bos();
    try {
      key["chat"] = renderer().key();
    } catch (const Error&) {  // there is no template; a set without conversations needs none
    }
  }
  return key.dump();
}

}  // namespace chassis
