"""Characters of a text, with a state that continues from piece to piece at the script's request."""

import cntk as C
import numpy as np

C.cntk_py.set_fixed_random_seed(1)
text = "the quick brown fox jumps over the lazy dog. " * 6
chars = sorted(set(text))
index = {c: i for i, c in enumerate(chars)}
vocab_dim, hidden_dim, num_layers, minibatch_size = len(chars), 24, 2, 45


def get_data(p):
    xi = [index[c] for c in text[p : p + minibatch_size]]
    yi = [index[c] for c in text[p + 1 : p + minibatch_size + 1]]
    X = np.eye(vocab_dim, dtype=np.float32)[xi]
    Y = np.eye(vocab_dim, dtype=np.float32)[yi]
    return [X], [Y]


def create_model(output_dim):
    return C.layers.Sequential(
        [
            C.layers.For(
                range(num_layers),
                lambda: C.layers.Sequential(
                    [C.layers.Stabilizer(), C.layers.Recurrence(C.layers.LSTM(hidden_dim), go_backwards=False)]
                ),
            ),
            C.layers.Dense(output_dim),
        ]
    )


input_seq_axis = C.Axis("inputAxis")
input_sequence = C.sequence.input_variable(shape=vocab_dim, sequence_axis=input_seq_axis)
label_sequence = C.sequence.input_variable(shape=vocab_dim, sequence_axis=input_seq_axis)
z = create_model(vocab_dim)(input_sequence)
ce = C.cross_entropy_with_softmax(z, label_sequence)
errs = C.classification_error(z, label_sequence)
lr_per_sample = C.learning_parameter_schedule_per_sample(0.003)
momentum_schedule = C.momentum_schedule_per_sample(0.9990913221888589)
learner = C.momentum_sgd(
    z.parameters,
    lr_per_sample,
    momentum_schedule,
    gradient_clipping_threshold_per_sample=5.0,
    gradient_clipping_with_truncation=True,
)
progress_printer = C.logging.ProgressPrinter(freq=5, tag="Training")
trainer = C.Trainer(z, (ce, errs), learner, progress_printer)
C.logging.log_number_of_parameters(z)
mask = [True]
losses = []
for _e in range(12):
    for b in range(0, len(text) - minibatch_size - 1, minibatch_size):
        mask = [b == 0]
        X, Y = get_data(b)
        arguments = ({input_sequence: X, label_sequence: Y}, mask)
        trainer.train_minibatch(arguments)
        losses.append(trainer.previous_minibatch_loss_average)
print("fell", losses[-1] < losses[0] - 0.1)
probs = C.softmax(z).eval({input_sequence: [np.eye(vocab_dim, dtype=np.float32)[[index[c] for c in "the q"]]]})
print(np.squeeze(probs[0])[-1].shape)
