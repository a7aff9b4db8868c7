"""Tags of words, by recurrences in both directions over normalized embeddings."""

import cntk as C
import numpy as np

C.cntk_py.set_fixed_random_seed(4)
rng = np.random.RandomState(0)
vocab_size, num_labels, emb_dim, hidden_dim = 40, 5, 12, 16
with open("tags.ctf", "w") as f:
    for s in range(120):
        for w in rng.randint(0, vocab_size, rng.randint(2, 9)):
            f.write(f"{s} |S0 {w}:1 |S2 {w % num_labels}:1\n")


def BiRecurrence(fwd, bwd):
    F = C.layers.Recurrence(fwd)
    G = C.layers.Recurrence(bwd, go_backwards=True)
    x = C.placeholder()
    return C.splice(F(x), G(x))


def create_model():
    with C.layers.default_options(initial_state=0.1):
        return C.layers.Sequential(
            [
                C.layers.Embedding(emb_dim, name="embed"),
                C.layers.BatchNormalization(),
                BiRecurrence(C.layers.LSTM(hidden_dim // 2), C.layers.LSTM(hidden_dim // 2)),
                C.layers.LayerNormalization(),
                C.layers.Dense(num_labels, name="classify"),
            ]
        )


def create_reader(path, is_training):
    return C.io.MinibatchSource(
        C.io.CTFDeserializer(
            path,
            C.io.StreamDefs(
                query=C.io.StreamDef(field="S0", shape=vocab_size, is_sparse=True),
                slot_labels=C.io.StreamDef(field="S2", shape=num_labels, is_sparse=True),
            ),
        ),
        randomize=is_training,
        max_sweeps=C.io.INFINITELY_REPEAT if is_training else 1,
    )


def create_criterion_function_preferred(model, labels):
    ce = C.cross_entropy_with_softmax(model, labels)
    errs = C.classification_error(model, labels)
    return ce, errs


x = C.sequence.input_variable(vocab_size)
y = C.sequence.input_variable(num_labels)
z = create_model()
print(z.embed.E.shape, z.classify.b.value)


def train(reader, model_func, max_epochs=6):
    model = model_func(x)
    loss, label_error = create_criterion_function_preferred(model, y)
    epoch_size, minibatch_size = 600, 70
    lr_per_sample = [0.02] * 4 + [0.01]
    lr_schedule = C.learning_parameter_schedule_per_sample(lr_per_sample, epoch_size=epoch_size)
    momentums = C.momentum_schedule(0.9, minibatch_size=minibatch_size)
    learner = C.adam(
        parameters=model.parameters,
        lr=lr_schedule,
        momentum=momentums,
        gradient_clipping_threshold_per_sample=15,
        gradient_clipping_with_truncation=True,
    )
    progress_printer = C.logging.ProgressPrinter(tag="Training", num_epochs=max_epochs)
    trainer = C.Trainer(model, (loss, label_error), learner, progress_printer)
    C.logging.log_number_of_parameters(model)
    t = 0
    for epoch in range(max_epochs):
        epoch_end = (epoch + 1) * epoch_size
        while t < epoch_end:
            data = reader.next_minibatch(
                minibatch_size, input_map={x: reader.streams.query, y: reader.streams.slot_labels}
            )
            trainer.train_minibatch(data)
            t += data[y].num_samples
        trainer.summarize_training_progress()


def evaluate(reader, model_func):
    model = model_func(x)
    loss, label_error = create_criterion_function_preferred(model, y)
    progress_printer = C.logging.ProgressPrinter(tag="Evaluation", num_epochs=0)
    dummy = C.learning_parameter_schedule_per_sample(0)
    evaluator = C.Trainer(model, (loss, label_error), [C.sgd(model.parameters, dummy)], progress_printer)
    wrong = n = 0
    while True:
        data = reader.next_minibatch(500, input_map={x: reader.streams.query, y: reader.streams.slot_labels})
        if not data:
            break
        wrong += evaluator.test_minibatch(data) * data[y].num_samples
        n += data[y].num_samples
    evaluator.summarize_test_progress()
    print("wrong", wrong / n < 0.05)


train(create_reader("tags.ctf", True), z)
evaluate(create_reader("tags.ctf", False), z)
query = np.zeros((3, vocab_size), np.float32)
query[range(3), [7, 1, 39]] = 1
print(np.argmax(z(x).eval({x: [query]})[0], axis=1))
