/* chassis.objective/1, kind "objective": what a run minimises if it is not the cross entropy of tokens, such as a loss
 * of preferences, of rewards or of classes. The program computes log-probabilities or scores of sequences; the plugin
 * turns them into losses and gradients. It sees arrays of doubles in host memory and no tensor, so it can be written
 * in any language and runs alike on every device.
 *
 * A sequence is a prompt with an answer, or a text. Sequences that belong together, such as the two answers of a pair,
 * are a unit and come in one batch. A batch is one micro-batch of one rank. Each loss term is a sum over the batch; the
 * host divides it by a count over the whole global batch (`count` of the term), so the loss is the same for any
 * division into micro-batches, rows and ranks.
 *
 * Order of calls: describe once; then, for each step, prepare if the description asks for it, and evaluate for each
 * batch of the step. Values are finite: the host ends the step before it would hand over others. */
#ifndef CHASSIS_KIND_OBJECTIVE_H
#define CHASSIS_KIND_OBJECTIVE_H

#include "chassis/status.h"

#define CHASSIS_OBJECTIVE_ID "chassis.objective/1"

/* Values that the program computes. */
#define CHASSIS_OBJECTIVE_LOGPS 1u  /* log-probabilities of the tokens of answers, given all tokens before them */
#define CHASSIS_OBJECTIVE_SCORES 2u /* num_scores scores of each sequence, at its last token */

/* Units: a row of the data is one. */
#define CHASSIS_OBJECTIVE_PAIRS 1u    /* two sequences, CHOSEN and REJECTED, with one prompt, in this order */
#define CHASSIS_OBJECTIVE_LABELLED 2u /* one sequence, ANSWER, with target 1 (desirable) or 0 */
#define CHASSIS_OBJECTIVE_TEXTS 3u    /* one sequence, ANSWER, with num_targets targets: a class, or a value for each */
#define CHASSIS_OBJECTIVE_ROLLOUTS 4u /* sequences, ANSWER, with one prompt, each with a reward as its target */
#define CHASSIS_OBJECTIVE_ANSWERS 5u  /* one sequence, ANSWER, without a target */

/* Flags of `needs`. REFERENCE: reference_logp, those of the model before training. GLOBAL: prepare gets the values of
 * the whole global batch before any gradient. MISMATCH, which implies GLOBAL: each LABELLED unit also has a sequence
 * MISMATCH, its prompt with the answer to another one, without a gradient. TOKENS: the arrays of tokens. OLD_LOGPS,
 * which implies TOKENS: old_token_logp, those of the policy that wrote the answers. TEACHER, which implies TOKENS, with
 * LOGPS and ANSWERS: for each token of an answer, the tokens that a teacher finds likely there, at most top_k, with its
 * log-probabilities and those of the model. STOPPED_RATIO, which implies OLD_LOGPS, says how gradients are meant: the
 * difference of token_logp and old_token_logp is a constant in them (a stopped gradient), so they are the derivatives
 * for a change of both by the same amount. MARGINS, with PAIRS: margin; without it, those of the data are counted as
 * not used. */
#define CHASSIS_OBJECTIVE_REFERENCE 1u
#define CHASSIS_OBJECTIVE_GLOBAL 2u
#define CHASSIS_OBJECTIVE_MISMATCH 4u
#define CHASSIS_OBJECTIVE_TOKENS 8u
#define CHASSIS_OBJECTIVE_OLD_LOGPS 16u
#define CHASSIS_OBJECTIVE_TEACHER 32u
#define CHASSIS_OBJECTIVE_STOPPED_RATIO 64u
#define CHASSIS_OBJECTIVE_MARGINS 128u

/* Roles of sequences. */
#define CHASSIS_SEQUENCE_ANSWER 0u
#define CHASSIS_SEQUENCE_CHOSEN 1u
#define CHASSIS_SEQUENCE_REJECTED 2u
#define CHASSIS_SEQUENCE_MISMATCH 3u

/* Counts over the global batch, by which terms are divided. Mismatches count for none. */
#define CHASSIS_COUNT_UNITS 1u
#define CHASSIS_COUNT_SEQUENCES 2u
#define CHASSIS_COUNT_TOKENS 3u        /* of all answers */
#define CHASSIS_COUNT_CHOSEN_TOKENS 4u /* of chosen answers */
#define CHASSIS_COUNT_TARGETS 5u       /* targets that are not NaN */

typedef struct chassis_objective_term {
  chassis_str_t name; /* "sigmoid" */
  uint32_t count;     /* CHASSIS_COUNT_… */
  uint32_t reserved0;
} chassis_objective_term_t;

#define CHASSIS_BETTER_NEITHER 0u
#define CHASSIS_BETTER_HIGHER 1u
#define CHASSIS_BETTER_LOWER 2u
typedef struct chassis_objective_metric {
  chassis_str_t name; /* "rewards/accuracies"; not a name that records have themselves, such as "loss" */
  uint32_t better;    /* CHASSIS_BETTER_… */
  uint32_t reserved0;
} chassis_objective_metric_t;

/* The arrays belong to the plugin and stay as they are as long as the instance. At most 1024 terms and 1024 metrics,
 * each with a name of 1 to 128 letters, digits and _ - . / @; at most 2^20 scores, targets, classes, sums, and doubles
 * of state; top_k is at most 4096. */
typedef struct chassis_objective_desc {
  uint32_t struct_size;
  uint32_t values; /* CHASSIS_OBJECTIVE_LOGPS or _SCORES */
  uint32_t units;  /* CHASSIS_OBJECTIVE_PAIRS … */
  uint32_t needs;
  uint32_t num_scores;  /* of a sequence; 0 with LOGPS. The head of the model has as many */
  uint32_t num_targets; /* of a sequence; at least 1 unless units are PAIRS or ANSWERS, then 0 */
  uint32_t num_terms;   /* at least 1; the loss is the sum of all */
  uint32_t num_metrics;
  const chassis_objective_term_t* terms;
  const chassis_objective_metric_t* metrics;
  uint32_t num_sums;           /* what evaluate adds up for the metrics */
  uint32_t state_size;         /* doubles that prepare gives for the whole global batch; 0 without GLOBAL */
  uint32_t state_per_sequence; /* doubles that it gives for each sequence */
  /* TEXTS: a target is an index of a class below this number, and no other number; 0: any finite number, or NaN where
   * there is none. */
  uint32_t num_classes;
  uint32_t top_k; /* TEACHER: at least 1; else 0 */
  uint32_t reserved0;
  double temperature; /* TEACHER: above 0; that of top_logp. Else 0 */
} chassis_objective_desc_t;
#define CHASSIS_OBJECTIVE_DESC_V1_SIZE 80u

/* Sequences of a batch, in the order of the data; of each unit all. Arrays of sequences have num_sequences elements,
 * arrays of tokens num_tokens: those of the answers, sequence by sequence. Arrays that do not apply are NULL. */
typedef struct chassis_objective_batch {
  uint32_t struct_size;
  uint32_t reserved0;
  uint64_t num_sequences;
  uint64_t num_tokens;
  const uint32_t* role;         /* CHASSIS_SEQUENCE_… */
  const uint64_t* unit;         /* sequences of one unit have the same number; numbers ascend */
  const double* target;         /* [num_sequences, num_targets] */
  const double* margin;         /* MARGINS: of the unit, for both sequences; 0 where the data have none */
  const double* logp;           /* LOGPS: sum over the tokens of the answer */
  const double* reference_logp; /* likewise */
  const double* length;         /* LOGPS: tokens of the answer, at least 1 */
  const double* score;          /* SCORES: [num_sequences, num_scores] */
  const uint64_t* first_token;  /* of each sequence in the arrays of tokens; one element more, num_tokens */
  const double* token_logp;
  const double* reference_token_logp;
  const double* old_token_logp;
  /* In evaluate: what prepare gave, [state_size] and [num_sequences, state_per_sequence]; and for each term 1 ÷ its
   * count over the global batch, by which gradients are multiplied. */
  const double* state;
  const double* sequence_state;
  const double* term_weight;
  /* TEACHER: for each token, how many of its top_k entries the teacher gives, which are the first ones; the others are
   * 0. [num_tokens, top_k]: log-probabilities of the teacher, as the data have them; and of the model, the logarithm of
   * softmax(logits / temperature) over the whole vocabulary. */
  const double* teacher_count;
  const double* teacher_logp;
  const double* top_logp;
} chassis_objective_batch_t;
#define CHASSIS_OBJECTIVE_BATCH_V1_SIZE 168u

/* Output of evaluate. All are zero before the call. Gradients are of Σ term_weight[i] · terms[i] with respect to the
 * arrays of the batch; they are NULL if the values are only evaluated. With TOKENS, the gradient of a token is that of
 * its sequence plus its own. A gradient of a MISMATCH must be 0. */
typedef struct chassis_objective_result {
  uint32_t struct_size;
  uint32_t reserved0;
  double* terms; /* [num_terms]: sums over the batch, not divided */
  double* sums;  /* [num_sums] */
  double* grad_logp;
  double* grad_score;
  double* grad_token_logp;
  double* grad_top_logp; /* TEACHER: [num_tokens, top_k] */
} chassis_objective_result_t;
#define CHASSIS_OBJECTIVE_RESULT_V1_SIZE 56u

typedef struct chassis_objective {
  uint32_t struct_size;
  uint32_t reserved0;
  /* [control] Says what the objective is, by the options of the instance. Illegal combinations of options are errors
   * of create. */
  chassis_status_t* (*describe)(struct chassis_instance* self, chassis_objective_desc_t* out);
  /* [step] With GLOBAL: gets all sequences of the global batch, and writes [state_size] and [num_sequences,
   * state_per_sequence], which are zero before the call. Every rank calls it with the same values, so it must be
   * deterministic. Not called without GLOBAL; NULL if no options ask for it. */
  chassis_status_t* (*prepare)(struct chassis_instance* self, const chassis_objective_batch_t* global, double* state,
                               double* sequence_state);
  /* [step] Adds nothing for an empty batch. The sums of the parts of a batch, divided between units, are those of the
   * whole; the order of units does not matter. */
  chassis_status_t* (*evaluate)(struct chassis_instance* self, const chassis_objective_batch_t* batch,
                                const chassis_objective_result_t* out);
  /* [step] From the sums over any number of batches to the metrics, [num_metrics]; NaN: not known. NULL: metric i is
   * sums[2i] ÷ sums[2i + 1], and NaN if that is 0; then num_sums is 2 · num_metrics. */
  chassis_status_t* (*metrics)(struct chassis_instance* self, const double* sums, double* out);
} chassis_objective_t;
#define CHASSIS_OBJECTIVE_V1_SIZE 40u

#endif
