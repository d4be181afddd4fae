// Renders a conversation with templates whose text and spans are known.
#include <fmt/core.h>

#include "host/base/printable.hpp"
#include "host/conformance/tokenizer_calls.hpp"
#include "host/conformance/tokenizer_checks.hpp"
#include "host/plugin/status.hpp"

namespace chassis {
namespace {

using tokenizer_calls::Refused;

constexpr const char* kMessages =
    R"([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"},)"
    R"( {"role": "assistant", "content": "It is größer: 4"}, {"role": "user", "content": "Thanks"},)"
    R"( {"role": "assistant", "content": "Bye <b>\"now\"</b>"}])";
constexpr const char* kContents[] = {"Be brief.", "2 + 2?", "It is größer: 4", "Thanks", "Bye <b>\"now\"</b>"};
constexpr const char* kRoles[] = {"system", "user", "assistant", "user", "assistant"};

// A ChatML template. `with_generation`: with the tags that transformers reads.
std::string chatml(bool with_generation) {
  const std::string content = with_generation
                                  ? "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<|im_end|>' }}"
                                    "{% endgeneration %}{% else %}{{ m['content'] + '<|im_end|>' }}{% endif %}"
                                  : "{{ m['content'] + '<|im_end|>' }}";
  return "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}" + content +
         "{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
}

RenderedChat expected_chat(bool with_generation, bool generation_prompt) {
  constexpr std::string_view kStop = "<|im_end|>";
  RenderedChat chat;
  for (uint64_t i = 0; i < std::size(kRoles); ++i) {
    chat.text += std::string("<|im_start|>") + kRoles[i] + "\n";
    const uint64_t begin = chat.text.size();
    chat.text += kContents[i];
    const uint64_t end = chat.text.size() + (with_generation ? kStop.size() : 0);
    if (std::string_view(kRoles[i]) == "assistant")
      chat.spans.push_back({with_generation ? ChatLeaf::kGeneration : ChatLeaf::kContent, i, begin, end});
    chat.text += kStop;
    chat.text += "\n";
  }
  if (generation_prompt) chat.text += "<|im_start|>assistant\n";
  return chat;
}

std::string spans_text(const std::vector<ChatSpan>& spans) {
  std::string text;
  for (const ChatSpan& span : spans)
    text += fmt::format("{}leaf {} of message {}: bytes {} to {}", text.empty() ? "" : "; ",
                        static_cast<uint32_t>(span.leaf), span.message, span.begin, span.end);
  return text.empty() ? "none" : text;
}

class ChatExamination {
 public:
  explicit ChatExamination(const TokenizerSubject& tokenizer) : tokenizer_(tokenizer) {}

  std::vector<std::string> run() {
    for (const bool with_generation : {false, true})
      for (const bool prompt : {false, true}) examine(with_generation, prompt);
    expect_refusal("a template without an end", "{% for m in messages %}{{ m['content'] }}", "");
    expect_refusal("a template that refuses", "{{ raise_exception('roles must alternate') }}", "roles must alternate");
    expect_refusal("an endless template",
                   "{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(100000) %}"
                   "{% endfor %}{% endfor %}{% endfor %}",
                   "");
    try {
      tokenizer_calls::render(tokenizer_, {.messages_json = kMessages, .template_text = chatml(false)}, 1u << 31);
      failures_.push_back("render accepts an unknown flag");
    } catch (const Refused&) {
    }
    return failures_;
  }

 private:
  static ChatRequest request(std::string template_text) {
    return {.messages_json = kMessages, .template_text = std::move(template_text), .unix_time_s = 1'700'000'000};
  }

  void examine(bool with_generation, bool prompt) {
    const std::string what =
        fmt::format("ChatML{}{}", with_generation ? " with generation tags" : "", prompt ? " before an answer" : "");
    const RenderedChat expected = expected_chat(with_generation, prompt);
    for (const bool spans : {false, true}) {
      ChatRequest chat = request(chatml(with_generation));
      chat.generation_prompt = prompt;
      chat.spans = spans;
      try {
        const RenderedChat got = tokenizer_calls::render(tokenizer_, chat);
        if (got.text != expected.text)
          failures_.push_back(what + ": rendered as '" + printable(got.text, 600) + "', expected '" +
                              printable(expected.text, 600) + "'");
        const std::string wanted = spans_text(spans ? expected.spans : std::vector<ChatSpan>{});
        if (spans_text(got.spans) != wanted)
          failures_.push_back(what + ": the spans are " + spans_text(got.spans) + "; expected " + wanted);
      } catch (const Refused& refused) {
        const bool is_unproven = spans && refused.code == CHASSIS_FAILED_PRECONDITION && !refused.text.empty();
        if (!is_unproven) failures_.push_back(what + ": refused: " + refused.text);
      }
    }
  }

  void expect_refusal(const std::string& what, const std::string& template_text, std::string_view words) {
    try {
      tokenizer_calls::render(tokenizer_, request(template_text));
      failures_.push_back(what + " is rendered, expected INVALID_ARGUMENT");
    } catch (const Refused& refused) {
      if (refused.code != CHASSIS_INVALID_ARGUMENT)
        failures_.push_back(
            fmt::format("{} is refused with {}, expected INVALID_ARGUMENT", what, status_code_text(refused.code)));
      else if (refused.text.empty() || refused.text.find(words) == std::string::npos)
        failures_.push_back(
            fmt::format("{} is refused as '{}', expected the words '{}'", what, printable(refused.text), words));
    }
  }

  const TokenizerSubject& tokenizer_;
  std::vector<std::string> failures_;
};

}  // namespace

std::vector<std::string> chat_failures(const TokenizerSubject& tokenizer) {
  if (tokenizer.table->render == nullptr) return {};
  return ChatExamination(tokenizer).run();
}

}  // namespace chassis
