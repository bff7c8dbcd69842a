// node-apn, served by the simulators whose announcement stands in the file named first. The second argument says to
// which devices to send, in one call each, then how many at once to the first of them; the answers are printed.
import { readFileSync } from "node:fs";
import apn from "@parse/node-apn";

const { apns } = JSON.parse(readFileSync(process.argv[2], "utf8"));
const { devices, at_once } = JSON.parse(process.argv[3]);
const endpoint = new URL(apns.endpoint);
const provider = new apn.Provider({
  token: { key: apns.key_file, keyId: apns.key_id, teamId: apns.team_id },
  address: endpoint.hostname,
  port: Number(endpoint.port),
  ca: readFileSync(apns.ca_file),
});

function notification(title, topic = apns.topic) {
  const made = new apn.Notification();
  made.topic = topic;
  made.pushType = "alert";
  made.alert = { title, body: "Grüße" };
  made.collapseId = "c";
  made.expiry = Math.floor(Date.now() / 1000) + 3600;
  made.payload = { n: 1 };
  return made;
}

const answers = [];
for (const device of devices) {
  answers.push(await provider.send(notification("one"), device));
}
answers.push(await provider.send(notification("topic", "com.example.other"), devices[0]));
answers.push(await provider.send(notification("many"), Array(at_once).fill(devices[0])));
await provider.shutdown();
console.log(JSON.stringify(answers));
