"""A convolutional network learns pictures from a map file, with random crops, a mean file and a test reader."""

import os

import cntk as C
import cntk.io.transforms as xforms
import numpy as np
from cntk.io import ImageDeserializer, MinibatchSource, StreamDef, StreamDefs
from PIL import Image

C.cntk_py.set_fixed_random_seed(1)
rng = np.random.RandomState(0)
os.makedirs("pictures")
with open("map.txt", "w") as lines:
    for i in range(200):
        # Red, green or blue wins in the middle.
        pixels = rng.randint(60, 120, (16, 20, 3)).astype(np.uint8)
        pixels[3:13, 4:16, i % 3] += 80
        Image.fromarray(pixels).save(f"pictures/{i}.png")
        lines.write(f".../pictures/{i}.png\t{i % 3}\n")
with open("mean.xml", "w") as xml:
    numbers = " ".join(["100"] * (3 * 8 * 8))
    xml.write(
        "<opencv_storage><Channel>3</Channel><Row>8</Row><Col>8</Col><MeanImg type_id='opencv-matrix'><rows>1</rows>"
        f"<cols>192</cols><dt>f</dt><data>{numbers}</data></MeanImg></opencv_storage>"
    )


def create_reader(train, samples):
    transforms = []
    if train:
        transforms += [xforms.crop(crop_type="randomside", side_ratio=(0.7, 1.0), jitter_type="uniratio")]
    transforms += [xforms.scale(width=8, height=8, channels=3, interpolations="linear"), xforms.mean("mean.xml")]
    streams = StreamDefs(
        features=StreamDef(field="image", transforms=transforms), labels=StreamDef(field="label", shape=3)
    )
    return MinibatchSource(
        ImageDeserializer("map.txt", streams), randomize=train, max_samples=samples, multithreaded_deserializer=True
    )


features, labels = C.input_variable((3, 8, 8)), C.input_variable(3)
with C.layers.default_options(activation=C.relu, pad=True):
    z = C.layers.Sequential(
        [C.layers.Convolution2D((3, 3), 8), C.layers.GlobalAveragePooling(), C.layers.Dense(3, activation=None)]
    )(features / 64)
criteria = C.cross_entropy_with_softmax(z, labels), C.classification_error(z, labels)
learner = C.adam(z.parameters, C.learning_parameter_schedule(0.1), C.momentum_schedule(0.9))
trainer = C.Trainer(z, criteria, learner, C.logging.ProgressPrinter(tag="Training", num_epochs=4))
train, test = create_reader(True, 800), create_reader(False, 200)
C.train.training_session(
    trainer=trainer,
    mb_source=train,
    mb_size=20,
    model_inputs_to_streams={features: train.streams.features, labels: train.streams.labels},
    max_samples=800,
    progress_frequency=200,
    test_config=C.train.TestConfig(
        test, 50, model_inputs_to_streams={features: test.streams.features, labels: test.streams.labels}
    ),
).train()
z.save(os.path.join("Models", "pictures.dnn"))
print("streams", train.streams.features, train.streams.labels)
minibatch = create_reader(False, 200).next_minibatch(200)
pictures = next(data for info, data in minibatch.items() if info.name == "features")
wrong = z.eval({features: pictures}).argmax(1) != np.arange(200) % 3
print("seen", trainer.total_number_of_samples_seen, "learned", wrong.mean() < 0.1)
