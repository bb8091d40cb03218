#include "kernels/loss_cuda.h"

#include "kernels/cuda/loss/loss_launch.h"
#include "kernels/cuda/primitives/launch_checks.h"

namespace nibble::cuda {

Status label_loss(const LabelLoss& l, const Stream& stream) {
    NIBBLE_CHECK(check_rows("label_loss", l.rows, l.vocab));
    NIBBLE_CHECK(check_aligned("label_loss", {l.logits, l.d_logits}));
    if (l.vocab > softmax_most_vocab)
        return fail("label_loss: the vocabulary of {} is larger than {}", l.vocab, softmax_most_vocab);
    if (l.d_logits && !l.slopes) return fail("label_loss: d_logits needs slopes");
    return cuda_status(launch_label_loss(l, queue_of(stream)), "label_loss: kernel launch");
}

Status teacher_loss(const TeacherLoss& l, const Stream& stream) {
    NIBBLE_CHECK(check_rows("teacher_loss", l.rows, l.vocab));
    NIBBLE_CHECK(check_aligned("teacher_loss", {l.logits, l.teacher, l.d_logits}));
    if (l.vocab > softmax_most_vocab)
        return fail("teacher_loss: the vocabulary of {} is larger than {}", l.vocab, softmax_most_vocab);
    if (!l.teacher || !l.weights || !l.losses || !l.d_logits) return fail("teacher_loss: a pointer is missing");
    return cuda_status(launch_teacher_loss(l, queue_of(stream)), "teacher_loss: kernel launch");
}

}  // namespace nibble::cuda
