// part.train overrides message.train, which overrides roles_to_train and last_turn_only.
#include "host/data/chat_mask.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "host/base/printable.hpp"

namespace chassis {
namespace {

bool is_role_to_train(const Message& message, const ChatConfig& config) {
  const auto& roles = config.roles_to_train;
  return std::find(roles.begin(), roles.end(), message.role) != roles.end();
}

// For each message, whether it is trained if none of its parts says otherwise.
std::vector<bool> trained_messages(const ChatRecord& chat, const ChatConfig& config) {
  const size_t count = chat.messages.size();
  std::vector<bool> trained(count);
  size_t last = count;
  for (size_t i = 0; i < count; ++i) {
    const bool in_completion = i >= chat.first_trained.value_or(0);
    trained[i] = config.train_on_prompt || (in_completion && is_role_to_train(chat.messages[i], config));
    if (trained[i]) last = i;
  }
  for (size_t i = 0; i < count; ++i) {
    if (config.last_turn_only && !config.train_on_prompt && i != last) trained[i] = false;
    if (chat.messages[i].train) trained[i] = *chat.messages[i].train;
  }
  return trained;
}

bool has_marked_parts(const Message& message) {
  return std::any_of(message.content.begin(), message.content.end(),
                     [](const ContentPart& part) { return part.train.has_value(); });
}

// True if no part of the message differs from `trained`.
bool is_uniform(const Message& message, bool trained) {
  return std::all_of(message.content.begin(), message.content.end(),
                     [&](const ContentPart& part) { return part.train.value_or(trained) == trained; });
}

class MessageMasker {
 public:
  MessageMasker(const Message& message, size_t index, bool trained, const std::string& text)
      : message_(message), trained_(trained), text_(text) {
    mask_.message = index;
  }

  MessageMask mask(const std::vector<const ChatSpan*>& spans) {
    mask_.is_generation = spans.front()->leaf == ChatLeaf::kGeneration;
    if (is_uniform(message_, trained_)) {
      for (const ChatSpan* span : spans) add(span->begin, span->end, trained_);
      return std::move(mask_);
    }
    const std::vector<ChatSpan> contents = content_spans(spans);
    auto content = contents.begin();
    for (const ChatSpan* span : spans) {
      const bool has_content = content != contents.end() && content->begin >= span->begin && content->end <= span->end;
      if (!has_content) {
        add(span->begin, span->end, trained_);
        continue;
      }
      // In a {% generation %} block, the text before the content belongs to its first part, and the end of the turn to
      // its last.
      if (mask_.is_generation) add(span->begin, content->begin, part_trained(0));
      add_content(*content);
      if (mask_.is_generation) add(content->end, span->end, part_trained(message_.content.size() - 1));
      ++content;
    }
    return std::move(mask_);
  }

 private:
  bool part_trained(size_t index) const { return message_.content[index].train.value_or(trained_); }

  void add(uint64_t begin, uint64_t end, bool trained) {
    // Text that the template writes between two leaves is trained if the second leaf is.
    if (!mask_.pieces.empty() && !mask_.is_generation) begin = mask_.pieces.back().end;
    mask_.pieces.push_back({begin, end, trained});
  }

  // The spans whose joined text is that of the parts, possibly without white space at the ends.
  std::vector<ChatSpan> content_spans(const std::vector<const ChatSpan*>& spans) {
    std::vector<ChatSpan> contents;
    std::string shown;
    const std::string text = message_.text();
    for (const ChatSpan* span : spans) {
      if (span->leaf == ChatLeaf::kContent) contents.push_back(*span);
      if (span->leaf != ChatLeaf::kGeneration) continue;
      const std::string_view inside = std::string_view(text_).substr(span->begin, span->end - span->begin);
      const size_t at = inside.find(text);
      if (at == std::string_view::npos || inside.find(text, at + 1) != std::string_view::npos) continue;
      contents.push_back({ChatLeaf::kContent, span->message, span->begin + at, span->begin + at + text.size()});
    }
    for (const ChatSpan& span : contents) shown += text_.substr(span.begin, span.end - span.begin);
    constexpr const char* kSpace = " \t\r\n";
    offset_ = text.find(shown);
    const bool is_known = !shown.empty() && offset_ != std::string::npos && text.find_first_not_of(kSpace) >= offset_ &&
                          text.find_last_not_of(kSpace) < offset_ + shown.size();
    if (!is_known)
      throw config_error(
          fmt::format("messages[{}] has parts with `train`, and the template changes their text, so their "
                      "places are not known",
                      mask_.message))
          .hint("set `train` of the whole message instead, or a slot template as data.template");
    return contents;
  }

  // Divides a span by the parts: it starts at byte offset_ of their joined text.
  void add_content(const ChatSpan& span) {
    uint64_t begin = span.begin, part_end = 0;
    for (size_t i = 0; i < message_.content.size(); ++i) {
      part_end += message_.content[i].text.size();
      if (part_end <= offset_) continue;
      const uint64_t end = std::min(span.end, begin + (part_end - offset_));
      if (begin == end) continue;
      add(begin, end, part_trained(i));
      offset_ += end - begin;
      begin = end;
    }
  }

  const Message& message_;
  bool trained_;
  const std::string& text_;
  MessageMask mask_;
  uint64_t offset_ = 0;  // in the joined text of the parts
};

bool says_something(const Message& message) {
  return !message.text().empty() || !message.reasoning.empty() || !message.tool_calls_json.empty();
}

Error no_span(const Message& message, size_t index, bool trained) {
  if (message.role == "assistant")
    return config_error(fmt::format("the template does not show messages[{}], which is to be {}", index,
                                    trained ? "trained" : "masked"))
        .hint("set `train` = false in that message, or another data.template");
  return config_error(fmt::format("messages[{}] has the role \"{}\" and is to be {}, but a Jinja template gives the "
                                  "places of the assistant's messages only",
                                  index, printable(message.role), trained ? "trained" : "masked"))
      .hint("data.template = \"chatml\", or another slot template, gives those of all roles");
}

}  // namespace

bool MessageMask::any_trained() const {
  return std::any_of(pieces.begin(), pieces.end(), [](const Piece& piece) { return piece.trained; });
}

bool needs_spans(const ChatRecord& chat, const ChatConfig& config) {
  if (!config.train_on_prompt) return true;
  return std::any_of(chat.messages.begin(), chat.messages.end(),
                     [](const Message& message) { return message.train == false || has_marked_parts(message); });
}

std::vector<MessageMask> mask_messages(const ChatRecord& chat, const RenderedChat& rendered, const ChatConfig& config) {
  std::vector<std::vector<const ChatSpan*>> spans(chat.messages.size());
  for (const ChatSpan& span : rendered.spans) {
    CHASSIS_CHECK(span.message < spans.size() && span.begin <= span.end && span.end <= rendered.text.size(),
                  "a span lies inside the text and belongs to a message");
    spans[span.message].push_back(&span);
  }
  const std::vector<bool> trained = trained_messages(chat, config);
  std::vector<MessageMask> masks;
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    const Message& message = chat.messages[i];
    // With train_on_prompt only what is masked matters, else only what is trained.
    if (is_uniform(message, trained[i]) && trained[i] == config.train_on_prompt) continue;
    if (spans[i].empty()) {
      if (says_something(message)) throw no_span(message, i, trained[i]);
      continue;
    }
    masks.push_back(MessageMasker(message, i, trained[i], rendered.text).mask(spans[i]));
  }
  return masks;
}

std::vector<ByteRange> joined(std::vector<ByteRange> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
  std::vector<ByteRange> out;
  for (const ByteRange& range : ranges) {
    if (!out.empty() && range.begin <= out.back().end)
      out.back().end = std::max(out.back().end, range.end);
    else
      out.push_back(range);
  }
  return out;
}

std::vector<bool> tokens_inside(const Encoding& encoding, const std::vector<ByteRange>& ranges,
                                std::vector<size_t>& partly_inside) {
  std::vector<bool> inside(encoding.ids.size());
  size_t range = 0;
  for (size_t i = 0; i < encoding.ids.size(); ++i) {
    const uint64_t begin = encoding.begin[i], end = encoding.end[i];
    while (range < ranges.size() && ranges[range].end <= begin) ++range;
    if (range == ranges.size()) break;
    const ByteRange& next = ranges[range];
    // An id that covers no bytes belongs to the byte that follows it.
    if (begin >= next.begin && end <= next.end)
      inside[i] = true;
    else if (begin < next.end && end > next.begin)
      partly_inside.push_back(i);
  }
  return inside;
}

}  // namespace chassis
