// Builds the task of an RL run from its config: the source of questions, their encoding, and the judge of answers.
#pragma once

#include "base/thread_pool.h"
#include "chat/model_text.h"
#include "rl/question_rows.h"
#include "rl/rl_config.h"
#include "rl/rollout.h"

#include <atomic>
#include <memory>

namespace nibble {

// Reads the rows of data.train and data.validation and checks that each prompt leaves room for an answer. Returns null
// if the questions are generated (data.task).
Result<std::shared_ptr<const QuestionRows>> open_question_rows(const RlConfig& config, const ModelText& text);

// `rows` comes from open_question_rows(). `text`, `pool` and `stop` must outlive the task. `judge` is the caller's
// function for env.function; null: none. Errors: data.chat is set but the model has no chat template; a sandbox or an
// environment cannot start; env.function without a function, or a function without env.function.
Result<std::unique_ptr<RolloutTask>> open_config_task(const RlConfig& config, const ModelText& text,
                                                      std::shared_ptr<const QuestionRows> rows, ThreadPool& pool,
                                                      const std::atomic<bool>* stop, JudgeFunction judge = {});

}  // namespace nibble
