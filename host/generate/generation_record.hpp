// The inputs that determine the answers to a file of prompts: the weights, the chat template and the settings.
#pragma once

#include <string>

#include "host/base/json.hpp"
#include "host/generate/generation_settings.hpp"
#include "host/session/session.hpp"

namespace chassis {

// An object of plain values, under the names in messages. `weights` is the directory of the weights; its files are
// compared by name, size and modification time, not by content. `with_chat`: a prompt is a conversation.
Json generation_record(const Session& session, const GenerationSettings& generation, const std::string& weights,
                       bool with_chat);

// "\n  weights: A then, B now" for each value that differs; empty if none does.
std::string differences_text(const Json& then, const Json& now);

}  // namespace chassis
