# Databricks notebook source
# MAGIC %md
# MAGIC # PyTorch: a Trial, and the feed alone
# MAGIC
# MAGIC A `TorchTrial` gets checkpoints, MLflow, pauses and searches, as a `KerasTrial` does. Your own training loop
# MAGIC uses the feed instead of a `DataLoader`. Needs `pip install 'lakelens[torch]'`.

# COMMAND ----------

# MAGIC %run ./setup

# COMMAND ----------

dbutils.widgets.text("folder", default_folder(), "Folder (a volume on Databricks)")
dbutils.widgets.text("table", "", "Image table; one in the folder when empty")
import torch
from torch import nn

folder = folder_of("folder")
table = table_of_digits(folder)
store = store_of(folder)
location, version = path_of(table), table.version

# COMMAND ----------

# MAGIC %md
# MAGIC ## A Trial
# MAGIC The model takes images as they are stored (uint8, channels first); scaling is a part of it.

# COMMAND ----------


class Scaled(nn.Module):
    def forward(self, images):
        return images.float() / 255


class Digits(lakelens.TorchTrial):
    def build_model(self):
        layers = [Scaled(), nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(6), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(576, self.context.num_classes))

    def build_optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), self.context.get_hparam("learning_rate", 0.003))

    def training_step(self, model, batch):
        images, labels = batch
        return nn.functional.cross_entropy(model(images), labels)


# COMMAND ----------

run = lakelens.train(
    location,
    version=version,
    entrypoint=Digits,
    epochs=6,
    global_batch_size=32,
    tracking_uri=store,
    config={
        "tracking": {"experiment": experiment_of("notebook-10")},
        "checkpoint_storage": {"path": str(folder / "checkpoints")},
    },
)
print(run.metrics)
learning_curves(store, ("TorchTrial", run))

# COMMAND ----------

# MAGIC %md
# MAGIC ## The feed alone
# MAGIC Before: a `DataLoader` with worker processes and a `DistributedSampler` over files. Now: one object that reads
# MAGIC the table's version, gives each row once per epoch over all ranks, and resumes within an epoch.

# COMMAND ----------

feed = lakelens.DeltaFeed(location, version=version, split="train", seed=0)
batches = feed.as_torch(32)
model = nn.Sequential(Scaled(), nn.Flatten(), nn.LazyLinear(len(table.labels())))
model(next(iter(batches))[0])  # LazyLinear reads its size from a batch
optimizer = torch.optim.SGD(model.parameters(), 0.05)
means = []
for epoch in range(4):
    total = 0.0
    for images, labels, weights in batches:
        loss = (nn.functional.cross_entropy(model(images), labels, reduction="none") * weights).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += float(loss.detach()) * len(labels)
        state = batches.state_dict()  # JSON; load_state_dict(state) continues after this batch
    means.append(total / feed.rows)
    print(f"epoch {epoch}: {means[-1]:.3f}")
assert means[-1] < means[0]
