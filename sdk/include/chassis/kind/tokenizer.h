/* chassis.tokenizer/1, kind "tokenizer": text to ids with byte offsets and back, chat templates, and training a
 * vocabulary.
 *
 * Functions that are [any] are called from several threads at once. A tokenizer starts no threads for them. */
#ifndef CHASSIS_KIND_TOKENIZER_H
#define CHASSIS_KIND_TOKENIZER_H

#include "chassis/kind/model.h"
#include "chassis/status.h"

#define CHASSIS_TOKENIZER_ID "chassis.tokenizer/1"

#define CHASSIS_TOKENIZER_ADDS_BOS 1u /* a document begins with bos_id: HF's add_special_tokens does so */
#define CHASSIS_TOKENIZER_TRAINS 2u   /* `train` is offered */

/* Special ids are -1 if the tokenizer has none. Texts are valid as long as the instance. */
typedef struct chassis_tokenizer_info {
  uint32_t struct_size;
  uint32_t flags;          /* CHASSIS_TOKENIZER_…; unknown bits are ignored */
  int32_t bos_id;
  int32_t eos_id;
  int32_t pad_id;
  int32_t unk_id;
  int64_t vocab_size;      /* ids are below this */
  chassis_str_t fingerprint;   /* changes whenever some text would get other ids: with the vocabulary and the options */
  chassis_str_t chat_template; /* Jinja source of the opened directory; empty: it has none */
} chassis_tokenizer_info_t;
#define CHASSIS_TOKENIZER_INFO_V1_SIZE 64u

#define CHASSIS_TOKEN_SPECIAL 1u /* decoded only on request */
#define CHASSIS_TOKEN_ADDED 2u   /* matched as a whole before the text is split */
#define CHASSIS_TOKEN_UNUSED 4u  /* an id of the vocabulary without a text */

typedef struct chassis_token {
  uint32_t struct_size;
  uint32_t flags;     /* CHASSIS_TOKEN_… */
  chassis_str_t text; /* as the vocabulary spells it; valid as long as the instance */
} chassis_token_t;
#define CHASSIS_TOKEN_V1_SIZE 24u

/* Receives the ids of text number `index` once for each text, in order, on the calling thread. ids[i] covers bytes
 * [begin[i], end[i]) of the text; the two are equal for an id that covers none. begin never decreases. Several ids may
 * cover the same bytes: parts of one character. Arrays are borrowed for the call. */
typedef struct chassis_token_sink {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  void (*tokens)(const struct chassis_token_sink* sink, uint64_t index, const int32_t* ids, const uint64_t* begin,
                 const uint64_t* end, uint64_t count);
} chassis_token_sink_t;
#define CHASSIS_TOKEN_SINK_V1_SIZE 24u

#define CHASSIS_ENCODE_SPECIAL 1u      /* special tokens that the text spells become those tokens; else plain text */
#define CHASSIS_DECODE_KEEP_SPECIAL 1u /* special tokens are decoded as their texts */

#define CHASSIS_CHAT_GENERATION_PROMPT 1u /* ends where the assistant's answer begins */
#define CHASSIS_CHAT_SPANS 2u             /* spans are wanted */

/* A conversation to be rendered as text. Empty texts are left out. */
typedef struct chassis_chat {
  uint32_t struct_size;
  uint32_t flags;               /* CHASSIS_CHAT_… */
  chassis_str_t messages_json;  /* an array of objects as OpenAI has them: role, content, tool_calls, … */
  chassis_str_t tools_json;     /* an array of tools */
  chassis_str_t variables_json; /* an object: further variables of the template */
  chassis_str_t template_text;  /* Jinja source to use instead of the directory's */
  int64_t unix_time_s;          /* what strftime_now shows, in UTC */
} chassis_chat_t;
#define CHASSIS_CHAT_V1_SIZE 80u

#define CHASSIS_LEAF_CONTENT 1u /* without the token that ends the turn */
#define CHASSIS_LEAF_REASONING 2u
#define CHASSIS_LEAF_TOOL_CALLS 3u
#define CHASSIS_LEAF_GENERATION 4u /* the template's own {% generation %} block, with all that is in it */

/* Bytes [begin, end) of the rendered text that come from a message of the assistant. */
typedef struct chassis_chat_span {
  uint32_t struct_size;
  uint32_t leaf;    /* CHASSIS_LEAF_… */
  uint64_t message; /* its index in messages_json */
  uint64_t begin;
  uint64_t end;
} chassis_chat_span_t;
#define CHASSIS_CHAT_SPAN_V1_SIZE 32u

/* Receives the text once, and then the spans in the order of `begin`. They do not overlap. */
typedef struct chassis_chat_sink {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  void (*text)(const struct chassis_chat_sink* sink, chassis_str_t text);
  void (*span)(const struct chassis_chat_sink* sink, const chassis_chat_span_t* span);
} chassis_chat_sink_t;
#define CHASSIS_CHAT_SINK_V1_SIZE 32u

/* Gives one text after the other; an empty text with *is_end = 1 is the end. *text is valid until the next call. */
typedef struct chassis_text_source {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  chassis_status_t* (*next)(const struct chassis_text_source* source, chassis_str_t* text, uint32_t* is_end);
} chassis_text_source_t;
#define CHASSIS_TEXT_SOURCE_V1_SIZE 24u

/* Writes a file of the directory that is being made. `name` has no folder. */
typedef struct chassis_file_sink {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  chassis_status_t* (*file)(const struct chassis_file_sink* sink, chassis_str_t name, chassis_str_t content);
} chassis_file_sink_t;
#define CHASSIS_FILE_SINK_V1_SIZE 24u

typedef struct chassis_vocabulary {
  uint32_t struct_size;
  uint32_t num_threads;   /* at most; at least 1 */
  int64_t vocab_size;     /* with special tokens */
  uint64_t min_frequency; /* pairs that occur less often are not merged */
} chassis_vocabulary_t;
#define CHASSIS_VOCABULARY_V1_SIZE 24u

typedef struct chassis_tokenizer {
  uint32_t struct_size;
  uint32_t reserved0;
  /* [control] Reads the tokenizer of a model directory. Called once, before all others but `train`. Empty: there is no
   * directory; a tokenizer that needs files answers INVALID_ARGUMENT. NULL: it reads no files. */
  chassis_status_t* (*open)(struct chassis_instance* self, chassis_str_t directory);
  /* [any] */
  chassis_status_t* (*info)(struct chassis_instance* self, chassis_tokenizer_info_t* out);
  /* [any] Ids of each text, without ids that the text does not spell (no BOS, no EOS). `flags`: CHASSIS_ENCODE_…. A
   * text that is not UTF-8 may be INVALID_ARGUMENT, with the byte in the message. */
  chassis_status_t* (*encode)(struct chassis_instance* self, const chassis_str_t* texts, uint64_t num_texts,
                              uint32_t flags, const chassis_token_sink_t* sink);
  /* [any] Bytes of the ids, in one text. `flags`: CHASSIS_DECODE_…. An incomplete UTF-8 sequence is returned as it is,
   * or as U+FFFD where HF does so. An id outside the vocabulary is OUT_OF_RANGE. */
  chassis_status_t* (*decode)(struct chassis_instance* self, const int32_t* ids, uint64_t num_ids, uint32_t flags,
                              const chassis_text_sink_t* sink);
  /* [any] One entry of the vocabulary. OUT_OF_RANGE as in decode. */
  chassis_status_t* (*token)(struct chassis_instance* self, int32_t id, chassis_token_t* out);
  /* [any] The id of the entry that the vocabulary spells as `text`, or -1. */
  chassis_status_t* (*id_of)(struct chassis_instance* self, chassis_str_t text, int32_t* out);
  /* [any] Renders a conversation. INVALID_ARGUMENT: the template refuses it; the message is the template's own.
   * FAILED_PRECONDITION: spans are wanted and cannot be proven for this template. NULL: the tokenizer renders no
   * templates. */
  chassis_status_t* (*render)(struct chassis_instance* self, const chassis_chat_t* chat,
                              const chassis_chat_sink_t* sink);
  /* [control] Makes a vocabulary from texts, and writes files of a directory that `open` reads. NULL: not offered. */
  chassis_status_t* (*train)(struct chassis_instance* self, const chassis_vocabulary_t* vocabulary,
                             const chassis_text_source_t* source, const chassis_file_sink_t* sink);
} chassis_tokenizer_t;
#define CHASSIS_TOKENIZER_V1_SIZE 72u

#endif
