// Finds the parts of a conversation that a Jinja template leaves out of its text. Slot templates show all of a
// conversation, or refuse it.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "host/data/chat_renderer.hpp"
#include "host/data/record.hpp"

namespace chassis {

struct Omission {
  enum class What {
    kContent,        // the content of a message
    kPartOfContent,  // a part of the content of a message
    kReasoning,      // the reasoning in the content of an answer, up to </think>
    kToolCalls,      // the tool calls of an answer: the names of the functions
    kArguments,      // the arguments of its tool calls
    kPython,         // the tool calls are shown, but as Python spells them, not as JSON
    kTools,          // the tools that the row offers
    kPythonTools,    // they are shown as Python spells them
    kRole,           // the role of a message: another one would give the same text
  };
  What what = What::kContent;
  size_t message = 0;
};

// A template shows a part if the text changes with it. Each kind of message, together with its neighbours, is proven
// once by a render in which all parts have marks. For other rows, it is only checked that the text holds what the row
// says; if it does not, as when a template rewrites a content, the row is rendered with marks too. Used by one thread.
class ChatCoverage {
 public:
  // The renderer outlives the object.
  explicit ChatCoverage(const ChatRenderer& renderer) : renderer_(renderer) {}

  // `text` is the rendered conversation. The conversation is as the template gets it: ChatRenderer::prepared().
  std::vector<Omission> omissions(const ChatRecord& chat, const std::string& text);

 private:
  bool holds_all(const ChatRecord& chat, const std::string& text);
  std::vector<Omission> find(const ChatRecord& chat, const std::string& text);
  void find_hidden_roles(const ChatRecord& chat, const std::string& text);

  const ChatRenderer& renderer_;
  std::unordered_set<std::string> proven_;  // kinds of messages
  std::set<std::string> shown_roles_, hidden_roles_;
  std::string tools_json_;  // the tools of the previous row, which are often the same
  std::vector<std::string> tool_names_;
};

}  // namespace chassis
