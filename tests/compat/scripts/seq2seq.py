"""Spells sequences of letters backwards, with and without attention. Greedy decoding by UnfoldFrom."""

import cntk as C
import numpy as np

C.cntk_py.set_fixed_random_seed(1)
rng = np.random.RandomState(0)
vocab = 8  # 0 begins a sequence, 1 ends it
hidden_dim, num_layers, attention_dim, length_increase = 10, 2, 6, 1.5
sentence_start = C.Constant(np.eye(vocab, dtype=np.float32)[0])
sentence_end_index = 1

inputAxis, labelAxis = C.Axis("inputAxis"), C.Axis("labelAxis")
InputSequence, LabelSequence = C.layers.SequenceOver[inputAxis], C.layers.SequenceOver[labelAxis]


def one_hot(numbers):
    return np.eye(vocab, dtype=np.float32)[numbers]


def minibatch(size):
    words = [rng.randint(2, vocab, rng.randint(2, 5)) for _ in range(size)]
    return [one_hot(w) for w in words], [one_hot([0, *w[::-1], 1]) for w in words]


def create_model(use_attention):
    embed = C.layers.Embedding(10, name="embed")
    with C.layers.default_options(enable_self_stabilization=True, go_backwards=not use_attention):
        LastRecurrence = C.layers.Recurrence if use_attention else C.layers.Fold
        encode = C.layers.Sequential(
            [
                embed,
                C.layers.Stabilizer(),
                C.layers.For(range(num_layers - 1), lambda: C.layers.Recurrence(C.layers.LSTM(hidden_dim))),
                LastRecurrence(C.layers.LSTM(hidden_dim), return_full_state=True),
                (C.layers.Label("encoded_h"), C.layers.Label("encoded_c")),
            ]
        )
    with C.layers.default_options(enable_self_stabilization=True):
        stab_in = C.layers.Stabilizer()
        rec_blocks = [C.layers.LSTM(hidden_dim) for i in range(num_layers)]
        stab_out = C.layers.Stabilizer()
        proj_out = C.layers.Dense(vocab, name="out_proj")
        if use_attention:
            attention_model = C.layers.AttentionModel(attention_dim, name="attention_model")

        @C.Function
        def decode(history, input):
            encoded_input = encode(input)
            r = history
            r = embed(r)
            r = stab_in(r)
            for i in range(num_layers):
                rec_block = rec_blocks[i]
                if use_attention:
                    if i == 0:

                        @C.Function
                        def lstm_with_attention(dh, dc, x, rec_block=rec_block, encoded_input=encoded_input):
                            h_att = attention_model(encoded_input.outputs[0], dh)
                            x = C.splice(x, h_att)
                            return rec_block(dh, dc, x)

                        r = C.layers.Recurrence(lstm_with_attention)(r)
                    else:
                        r = C.layers.Recurrence(rec_block)(r)
                else:
                    r = C.layers.RecurrenceFrom(rec_block)(*((*encoded_input.outputs, r)))
            r = stab_out(r)
            r = proj_out(r)
            return C.layers.Label("out_proj_out")(r)

    return decode


def create_model_train(s2smodel):
    @C.Function
    def model_train(input, labels):
        past_labels = C.layers.Delay(initial_state=sentence_start)(labels)
        return s2smodel(past_labels, input)

    return model_train


def create_model_greedy(s2smodel):
    @C.Function
    @C.layers.Signature(InputSequence[C.layers.Tensor[vocab]])
    def model_greedy(input):
        unfold = C.layers.UnfoldFrom(
            lambda history: s2smodel(history, input) >> C.hardmax,
            until_predicate=lambda w: w[..., sentence_end_index],
            length_increase=length_increase,
        )
        return unfold(initial_state=sentence_start, dynamic_axes_like=input)

    return model_greedy


def create_criterion_function(model):
    @C.Function
    @C.layers.Signature(input=InputSequence[C.layers.Tensor[vocab]], labels=LabelSequence[C.layers.Tensor[vocab]])
    def criterion(input, labels):
        postprocessed_labels = C.sequence.slice(labels, 1, 0)
        z = model(input, postprocessed_labels)
        ce = C.cross_entropy_with_softmax(z, postprocessed_labels)
        errs = C.classification_error(z, postprocessed_labels)
        return (ce, errs)

    return criterion


for use_attention in (False, True):
    s2smodel = create_model(use_attention)
    model_train = create_model_train(s2smodel)
    criterion = create_criterion_function(model_train)
    model_greedy = create_model_greedy(s2smodel)
    learner = C.fsadagrad(
        model_train.parameters,
        lr=C.learning_parameter_schedule_per_sample(0.02),
        momentum=C.momentum_schedule(0.9366416204111472, minibatch_size=100),
        gradient_clipping_threshold_per_sample=2.3,
        gradient_clipping_with_truncation=True,
    )
    trainer = C.Trainer(None, criterion, learner)
    C.logging.log_number_of_parameters(model_train)
    for _i in range(32):
        inputs, labels = minibatch(8)
        trainer.train_minibatch({criterion.arguments[0]: inputs, criterion.arguments[1]: labels})
    print("attention" if use_attention else "plain", trainer.previous_minibatch_loss_average < 2)
    words, _ = minibatch(5)
    for word, spelt in zip(words, model_greedy(words), strict=False):
        print(np.argmax(word, 1), np.argmax(spelt, 1))
