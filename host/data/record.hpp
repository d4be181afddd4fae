// One row of a data set as it was read, before it becomes tokens: every format is one of these.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "host/data/sequences.hpp"

namespace chassis {

// A document; every token is trained, and EOS ends it.
struct TextRecord {
  std::string text;
};

// Texts that are joined as they are, without BOS and EOS; those with `trained` are trained.
struct SegmentsRecord {
  struct Segment {
    std::string text;
    bool trained = false;
  };
  std::vector<Segment> segments;
};

// Ids as they are. labels: empty, or one per id and not shifted.
struct TokensRecord {
  std::vector<int32_t> ids, labels;
};

struct ContentPart {
  std::string text;
  std::optional<bool> train;  // unset: as the message
  bool operator==(const ContentPart&) const = default;
};

struct Message {
  std::string role;  // "system", "user", "assistant", "tool", or a role of the template
  std::vector<ContentPart> content;
  bool content_is_parts = false;   // the row has a list of parts, which some templates render in another way
  bool has_content = true;         // false: null or absent, as with tool calls
  bool content_is_null = false;    // the row has the key, with null
  std::string reasoning;           // empty: none
  std::string tool_calls_json;     // an array whose arguments are objects; empty: none
  std::string tool_call_id, name;  // empty: none
  std::optional<bool> train;       // unset: by roles_to_train

  bool operator==(const Message&) const = default;
  std::string text() const {
    std::string joined;
    for (const ContentPart& part : content) joined += part.text;
    return joined;
  }
};

struct ChatRecord {
  std::vector<Message> messages;
  std::string tools_json;  // an array; empty: none
  // Messages from this one on are the completion, and only they are trained. Unset: the rules of [data] decide.
  std::optional<size_t> first_trained;
};

// A prompt and its completion as plain texts: only the completion and its EOS are trained.
struct CompletionRecord {
  std::string prompt, completion;
};

// A better and a worse answer to the same messages.
struct PreferenceRecord {
  ChatRecord chosen, rejected;  // each with the shared messages in front; first_trained is where the answers begin
  std::optional<double> margin;
  bool is_split = false;  // trained as two labelled answers, of which the first is good
};

// An answer that is good or bad.
struct LabelledRecord {
  ChatRecord answer;  // first_trained is where the answer begins
  bool is_good = false;
};

// A text, or a conversation, with a class or with values.
struct ClassifiedRecord {
  std::variant<TextRecord, ChatRecord> input;
  std::vector<double> targets;  // NaN: none
};

// Answers of a policy to one prompt, with rewards.
struct RolloutsRecord {
  struct Rollout {
    ChatRecord answer;  // first_trained is where the answer begins
    double reward = 0;
    std::vector<double> logps;  // of its tokens, as the policy gave them; empty: not given
  };
  std::vector<Rollout> rollouts;
};

// An answer with the tokens that a teacher finds likely at each of its positions.
struct DistilledRecord {
  std::variant<ChatRecord, TokensRecord> answer;  // first_trained of a conversation is where the answer begins
  TeacherFacts teacher;                           // of each token of the answer, or of the whole row
};

using Record = std::variant<TextRecord, SegmentsRecord, TokensRecord, ChatRecord, CompletionRecord, PreferenceRecord,
                            LabelledRecord, ClassifiedRecord, RolloutsRecord, DistilledRecord>;

}  // namespace chassis
