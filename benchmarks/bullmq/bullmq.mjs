// BullMQ with jobs that do nothing: `node bullmq.mjs fill PORT COUNT`, then `drain PORT COUNT CONCURRENCY`.
// drain prints the seconds from its start to the end of the last job, as JSON.
import { Queue, Worker } from "bullmq";

const [what, port, count, concurrency] = process.argv.slice(2).map((word, n) => (n ? Number(word) : word));
const connection = { host: "127.0.0.1", port, maxRetriesPerRequest: null };
const body = "b".repeat(200);

if (what === "fill") {
  const queue = new Queue("push", { connection });
  for (let begin = 0; begin < count; begin += 500) {
    const size = Math.min(500, count - begin);
    const jobs = Array.from({ length: size }, (_, n) => ({
      name: "push",
      data: { user: `u${(begin + n) % (count / 5)}`, body },
      opts: { removeOnComplete: true },
    }));
    await queue.addBulk(jobs);
  }
  await queue.close();
} else {
  let ended = 0;
  const worker = new Worker("push", async () => {}, { connection, concurrency, autorun: false });
  await worker.waitUntilReady();
  const begun = performance.now();
  const all = new Promise((resolve, reject) => {
    worker.on("completed", () => ++ended === count && resolve());
    worker.on("failed", (_, error) => reject(error));
  });
  const running = worker.run();
  await all;
  console.log(JSON.stringify({ seconds: (performance.now() - begun) / 1000 }));
  await worker.close();
  await running;
}
