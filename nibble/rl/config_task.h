// The task of a run, from its config: where questions come from, how they become tokens, what judges the answers.
#pragma once

#include "base/thread_pool.h"
#include "chat/model_text.h"
#include "rl/question_rows.h"
#include "rl/rl_config.h"
#include "rl/rollout.h"

#include <atomic>
#include <memory>

namespace nibble {

// The rows of data.train and data.validation, each of whose prompts leaves room for an answer; null: the questions of
// data.task are generated.
Result<std::shared_ptr<const QuestionRows>> open_question_rows(const RlConfig& config, const ModelText& text);

// `rows`: of open_question_rows(). `text`, `pool` and `stop` outlive the task. Errors: a model without a chat template
// where data.chat asks for one; a sandbox or an environment that cannot start.
Result<std::unique_ptr<RolloutTask>> open_config_task(const RlConfig& config, const ModelText& text,
                                                      std::shared_ptr<const QuestionRows> rows, ThreadPool& pool,
                                                      const std::atomic<bool>* stop);

}  // namespace nibble
