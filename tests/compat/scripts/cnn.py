"""A convolutional network with batch normalization over images, saved, loaded and drawn."""

import cntk as C
import numpy as np

C.cntk_py.set_fixed_random_seed(1)
rng = np.random.RandomState(0)
labels = rng.randint(0, 4, 256)
images = rng.uniform(0, 0.2, (256, 1, 12, 12)).astype(np.float32)
for image, k in zip(images, labels, strict=False):
    image[0, 6 * (k // 2) : 6 * (k // 2) + 6, 6 * (k % 2) : 6 * (k % 2) + 6] += 0.8
classes = np.eye(4, dtype=np.float32)[labels]

x = C.input_variable((1, 12, 12))
y = C.input_variable(4)


def create_model(features):
    with C.layers.default_options(init=C.glorot_uniform(), activation=C.relu):
        h = C.layers.Convolution2D(filter_shape=(5, 5), num_filters=8, strides=(2, 2), pad=True, name="first_conv")(
            features
        )
        h = C.layers.BatchNormalization(map_rank=1)(h)
        h = C.layers.Convolution2D((3, 3), 8, strides=(1, 1), pad=True)(h)
        h = C.layers.MaxPooling(filter_shape=(2, 2), strides=(2, 2))(h)
        h = C.layers.Dropout(0.1)(h)
        return C.layers.Dense(4, activation=None, name="classify")(h)


z = create_model(x / 1.0)
print("Output Shape of the first convolution layer:", z.first_conv.shape)
print("Bias value of the last dense layer:", z.classify.b.value)
loss = C.cross_entropy_with_softmax(z, y)
label_error = C.classification_error(z, y)
C.logging.log_number_of_parameters(z)
learning_rate_schedule = C.learning_rate_schedule(0.2, C.UnitType.minibatch)
learner = C.sgd(z.parameters, learning_rate_schedule)
trainer = C.Trainer(z, (loss, label_error), [learner], [C.logging.ProgressPrinter(8)])
for _epoch in range(4):
    for i in range(0, 256, 32):
        trainer.train_minibatch({x: images[i : i + 32], y: classes[i : i + 32]})
out = C.softmax(z)
predicted = np.argmax(out.eval({x: images}), axis=1)
trainer.summarize_training_progress()
print("error", np.mean(predicted != labels), trainer.test_minibatch({x: images[:64], y: classes[:64]}))
z.save("cnn.model")
again = C.load_model("cnn.model")
print("same", np.allclose(again.eval(images[:3]), z.eval(images[:3]), atol=1e-5))
print("plot", len(C.logging.graph.plot(z, "cnn.dot").splitlines()) > 5)
