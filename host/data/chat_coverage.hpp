// Which parts of a conversation a Jinja template leaves out of its text. Slot templates show all of a conversation, or
// refuse it.
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
    kContent,        // of a message
    kPartOfContent,  // of a message
    kReasoning,      // in the content of an answer, up to </think>
    kToolCalls,      // of an answer: the names of the functions
    kArguments,      // of its tool calls
    kPython,         // its arguments are printed as Python spells a dict, not as JSON
    kTools,          // that the row offers
    kRole,           // of a message: another role would give the same text
  };
  What what = What::kContent;
  size_t message = 0;
};

// A template shows a part if the text changes with it. Each kind of message, with what stands around it, is proven once
// by a render in which all parts have marks. Of each row it is then only compared that the text holds what the row
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
  std::string tools_json_;  // of the row before, which are often the same
  std::vector<std::string> tool_names_;
};

}  // namespace chassis
