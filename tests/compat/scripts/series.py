"""Time series by an LSTM, and by a GRU through `Function.train` and `Function.test`."""

import cntk as C
import numpy as np

C.cntk_py.set_fixed_random_seed(1)
t = np.arange(400) * 0.1
wave = np.sin(t).astype(np.float32)
N, M, H = 10, 5, 8
X = [wave[i : i + N].reshape(-1, 1) for i in range(120)]
Y = np.array([[wave[i + N + M - 1]] for i in range(120)], dtype=np.float32)

x = C.sequence.input_variable(1)


def create_model(x):
    with C.layers.default_options(initial_state=0.1):
        m = C.layers.Recurrence(C.layers.LSTM(H))(x)
        m = C.sequence.last(m)
        m = C.layers.Dropout(0.1, seed=1)(m)
        return C.layers.Dense(1)(m)


z = create_model(x)
target = C.input_variable(1, dynamic_axes=z.dynamic_axes, name="y")
lr_schedule = C.learning_parameter_schedule_per_sample(0.002)
momentum_schedule = C.momentum_schedule(0.9, minibatch_size=30)
loss = C.squared_error(z, target)
error = C.squared_error(z, target)
learner = C.fsadagrad(z.parameters, lr=lr_schedule, momentum=momentum_schedule, unit_gain=True)
trainer = C.Trainer(z, (loss, error), [learner])
for epoch in range(12):
    for i in range(0, 120, 30):
        trainer.train_minibatch({x: X[i : i + 30], target: Y[i : i + 30]})
    if epoch % 4 == 0:
        print(f"epoch: {epoch}, loss: {trainer.previous_minibatch_loss_average:.5f}")
print("mse", trainer.test_minibatch({x: X[-30:], target: Y[-30:]}))
print(z.eval({x: X[:4]}).shape)

model = C.layers.Sequential([C.layers.Recurrence(C.layers.GRU(H)), C.sequence.last, C.layers.Dense(1)])


@C.Function
def criterion(x, y):
    out = model(x)
    return C.squared_error(out, y), C.squared_error(out, y)


criterion = criterion(C.sequence.input_variable(1), C.input_variable(1))
progress = C.logging.ProgressPrinter(tag="Training", num_epochs=3)
learner = C.adam(criterion.parameters, 0.01, 0.9, minibatch_size=30)
seen = criterion.train((X, Y), minibatch_size=30, max_epochs=3, parameter_learners=[learner], callbacks=[progress])
print(len(seen.epoch_summaries), seen.epoch_summaries[-1].loss < seen.epoch_summaries[0].loss)
print(criterion.test((X, Y), minibatch_size=30, callbacks=[progress]).samples)
