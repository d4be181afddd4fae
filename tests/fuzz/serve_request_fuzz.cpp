// Feeds bodies to the readers of requests. A body is refused with a status of its client's mistakes, or becomes a
// request within all bounds.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "host/serve/serve_request.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  using namespace chassis;
  const std::string_view text(reinterpret_cast<const char*>(data), num_bytes);
  ServedModels model;
  model.names = {"m", "n"};
  model.options.vocab_size = 100;
  model.max_positions = 50;
  for (auto* read : {read_chat_request, read_completion_request}) {
    try {
      const ServeRequest request = read(text, model);
      if (request.prompts.empty() || request.model >= model.names.size() || request.num_answers() > model.max_answers)
        std::abort();
      if (request.options.max_new_tokens < 1 || request.stop_texts.size() > 16) std::abort();
      for (const Prompt& prompt : request.prompts)
        if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt))
          for (const int32_t id : *ids)
            if (id < 0 || id >= model.options.vocab_size) std::abort();
    } catch (const RefusedRequest& refused) {
      if (refused.status() != 400 && refused.status() != 404) std::abort();
    }
  }
  return 0;
}
