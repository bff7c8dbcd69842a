// web-push from npm, served by the simulators whose announcement stands in the file named first: the answers to a message
// with each of the options, as each of the senders. And its reader, http_ece, for what we encrypted: see the second argument.
import crypto from "node:crypto";
import { readFileSync } from "node:fs";
import https from "node:https";
import ece from "http_ece";
import webPush from "web-push";

const { webpush } = JSON.parse(readFileSync(process.argv[2], "utf8"));
const { sends, reader, body } = JSON.parse(process.argv[3]);
const agent = new https.Agent({ ca: readFileSync(webpush.ca_file) });
const privateKey = crypto.createPrivateKey(readFileSync(webpush.key_file)).export({ format: "jwk" }).d;
const ours = { publicKey: webpush.public_key, privateKey };

const subscription = await new Promise((resolve, reject) => {
  const request = https.request(`${webpush.endpoint}/subscribe/node`, { method: "POST", agent }, (answer) =>
    answer.on("data", (text) => resolve(JSON.parse(text))),
  );
  request.on("error", reject).end();
});

const answers = [];
for (const { text, subject, stranger, ...options } of sends) {
  const vapidDetails = { subject, ...(stranger ? webPush.generateVAPIDKeys() : ours) };
  try {
    const answer = await webPush.sendNotification(subscription, text, { agent, vapidDetails, ...options });
    answers.push([answer.statusCode, answer.headers.location ? "" : "nowhere"]);
  } catch (error) {
    answers.push([error.statusCode, JSON.parse(error.body).reason]);
  }
}

const browser = crypto.createECDH("prime256v1");
browser.setPrivateKey(Buffer.from(reader.key, "base64url"));
const read = ece.decrypt(Buffer.from(body, "base64url"), {
  version: "aes128gcm",
  privateKey: browser,
  authSecret: reader.auth,
});
console.log(JSON.stringify({ answers, read: read.toString() }));
